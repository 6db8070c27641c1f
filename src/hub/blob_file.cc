#include "hub/blob_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace protean::hub {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

}  // namespace

BlobFile::BlobFile(int descriptor, std::filesystem::path path, RepoFile file)
    : descriptor_(descriptor),
      path_(std::move(path)),
      file_(std::move(file)),
      digest_(std::make_unique<Digest>(file_.digest, file_.size)) {}

BlobFile::BlobFile(BlobFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      size_(other.size_),
      digest_(std::move(other.digest_)) {}

BlobFile::~BlobFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Error BlobFile::failed(std::string_view what) const {
  return make_error(ErrorCode::kInvalidArgument, "cannot {} {}: {}", what, path_.string(),
                    std::strerror(errno));
}

Result<BlobFile> BlobFile::open(const std::filesystem::path& path, const RepoFile& file) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  BlobFile blob(descriptor, path, file);
  if (descriptor < 0) {
    return blob.failed("write");
  }
  const off_t there = ::lseek(descriptor, 0, SEEK_END);
  if (there > file.size) {
    if (Status restarted = blob.restart(); !restarted.ok()) {
      return restarted.error();
    }
  }
  return blob;
}

Result<bool> BlobFile::read_back() {
  std::vector<char> piece(kPieceBytes);
  ssize_t count = 0;
  do {
    count = ::pread(descriptor_, piece.data(), piece.size(), size_);
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    return failed("read");
  }
  digest_->add({piece.data(), static_cast<std::size_t>(count)});
  size_ += count;
  return count > 0;
}

Status BlobFile::append(std::span<const char> bytes) {
  if (std::cmp_greater(bytes.size(), file_.size - size_)) {
    return make_error(ErrorCode::kCorrupt, "it is longer than the {} bytes that the hub states",
                      file_.size);
  }
  digest_->add(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), size_);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return failed("write");
    }
    size_ += count;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status BlobFile::restart() {
  if (::ftruncate(descriptor_, 0) != 0) {
    return failed("write");
  }
  size_ = 0;
  digest_ = std::make_unique<Digest>(file_.digest, file_.size);
  return {};
}

// Writes the bytes to disk before the file gets the name that says they are whole.
Status BlobFile::publish(const std::filesystem::path& place) {
  if (::fsync(descriptor_) != 0) {
    return failed("write");
  }
  std::error_code failed_code;
  std::filesystem::rename(path_, place, failed_code);
  if (failed_code) {
    return make_error(ErrorCode::kInvalidArgument, "cannot write {}: {}", place.string(),
                      failed_code.message());
  }
  return {};
}

}  // namespace protean::hub

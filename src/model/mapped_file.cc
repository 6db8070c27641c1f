#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

namespace protean {
namespace {

Error cannot(std::string_view what, const std::filesystem::path& path) {
  const ErrorCode code =
      errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument;
  return make_error(code, "cannot {} {}: {}", what, path.string(),
                    std::generic_category().message(errno));
}

FileStamp stamp_from(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = status.st_size,
          .modified_s = status.st_mtim.tv_sec,
          .modified_ns = status.st_mtim.tv_nsec};
}

}  // namespace

Result<FileStamp> stamp_of(const std::filesystem::path& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? Result(stamp_from(status))
                                          : Result<FileStamp>(cannot("examine", path));
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  MappedFile file;
  // O_NONBLOCK, because opening a FIFO by mistake would wait for a writer.
  file.file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.file_.valid()) {
    return cannot("open", path);
  }
  struct stat status {};
  if (fstat(file.file_.get(), &status) != 0) {
    return cannot("examine", path);
  }
  if (!S_ISREG(status.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument, "{} is not a regular file", path.string());
  }
  if (status.st_size > 0) {
    const auto size = static_cast<std::size_t>(status.st_size);
    void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.file_.get(), 0);
    if (memory == MAP_FAILED) {
      return cannot("map", path);
    }
    file.bytes_ = {static_cast<const std::byte*>(memory), size};
    // Weights are read once, front to back. If the hint is refused, only speed is lost.
    madvise(memory, size, MADV_SEQUENTIAL);
  }
  file.path_ = path;
  file.stamp_ = stamp_from(status);
  return file;
}

Status MappedFile::same_stamp(const struct stat& status, std::string_view what) const {
  if (stamp_from(status) == stamp_) {
    return {};
  }
  return make_error(ErrorCode::kCorrupt,
                    "{} was {} after it was opened ({} bytes then, {} now): load the model again",
                    path_.string(), what, stamp_.size, status.st_size);
}

Status MappedFile::unchanged() const {
  struct stat status {};
  return file_.valid() && fstat(file_.get(), &status) == 0 ? same_stamp(status, "written")
                                                           : Status();
}

Status MappedFile::current() const {
  if (!file_.valid()) {
    return {};
  }
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0) {
    return cannot("examine", path_);
  }
  return same_stamp(status, "written or replaced");
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      stamp_(other.stamp_),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(stamp_, other.stamp_);
  std::swap(bytes_, other.bytes_);
  file_ = std::move(other.file_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void release_pages(std::span<const std::byte> piece) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(piece.data());
  const std::uintptr_t first = (address + page - 1) / page * page;
  const std::uintptr_t last = (address + piece.size()) / page * page;
  if (first < last) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

}  // namespace protean

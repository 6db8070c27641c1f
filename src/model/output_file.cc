#include "model/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace protean {
namespace {

constexpr std::size_t kMostBytes = 64U << 20U;  // in one write(2)

}  // namespace

OutputFile::OutputFile(int file, std::string name) : file_(file), name_(std::move(name)) {}

Result<OutputFile> OutputFile::create(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) {
    return make_error(ErrorCode::kInvalidArgument, "{} cannot be written: {}", path.string(),
                      std::strerror(errno));
  }
  return OutputFile(file, path.string());
}

OutputFile::~OutputFile() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)), name_(std::move(other.name_)) {}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), std::min(bytes.size(), kMostBytes));
    if (written < 0 && errno != EINTR) {
      return make_error(ErrorCode::kInternal, "{} cannot be written: {}", name_,
                        std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  return {};
}

Status OutputFile::finish() {
  if (::fsync(file_) != 0 || ::close(std::exchange(file_, -1)) != 0) {
    return make_error(ErrorCode::kInternal, "{} cannot be written: {}", name_,
                      std::strerror(errno));
  }
  return {};
}

}  // namespace protean

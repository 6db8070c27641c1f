#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace protean::hub {
namespace {

// True if `path` still names the open file. Another program may remove the file when it unlocks it.
bool is_same_file(int descriptor, const std::filesystem::path& path) {
  struct stat open_file {};
  struct stat named_file {};
  return ::fstat(descriptor, &open_file) == 0 && ::stat(path.c_str(), &named_file) == 0 &&
         open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

}  // namespace

Result<std::optional<FileLock>> FileLock::try_lock(const std::filesystem::path& path) {
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0) {
      return make_error(ErrorCode::kInvalidArgument, "cannot write {}: {}", path.string(),
                        std::strerror(errno));
    }
    FileLock lock(descriptor);
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK || errno == EINTR) {
        return std::optional<FileLock>();
      }
      return make_error(ErrorCode::kInternal, "cannot lock {}: {}", path.string(),
                        std::strerror(errno));
    }
    if (is_same_file(descriptor, path)) {
      return std::optional<FileLock>(std::move(lock));
    }
  }
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock::~FileLock() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

}  // namespace protean::hub

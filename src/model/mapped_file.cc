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

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK, because opening a FIFO by mistake would wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return cannot("open", path);
  }
  struct stat status {};
  MappedFile file;
  Status failure;
  if (fstat(fd, &status) != 0) {
    failure = cannot("examine", path);
  } else if (!S_ISREG(status.st_mode)) {
    failure = make_error(ErrorCode::kInvalidArgument, "{} is not a regular file", path.string());
  } else if (status.st_size > 0) {
    const auto size = static_cast<std::size_t>(status.st_size);
    void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (memory == MAP_FAILED) {
      failure = cannot("map", path);
    } else {
      file.bytes_ = {static_cast<const std::byte*>(memory), size};
      // Weights are read once, front to back. If the hint is refused, only speed is lost.
      madvise(memory, size, MADV_SEQUENTIAL);
    }
  }
  ::close(fd);
  if (!failure) {
    return failure.error();
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
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

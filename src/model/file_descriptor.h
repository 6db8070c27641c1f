#pragma once

#include <unistd.h>

#include <utility>

namespace protean {

// Owns a file descriptor of open(2), or holds -1.
class FileDescriptor {
 public:
  explicit FileDescriptor(int file) : file_(file) {}
  FileDescriptor(FileDescriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~FileDescriptor() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }

  bool valid() const { return file_ >= 0; }
  int get() const { return file_; }

 private:
  int file_;
};

}  // namespace protean

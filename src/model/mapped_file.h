#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/result.h"
#include "model/file_descriptor.h"

struct stat;

namespace protean {

// Tells files, and states of a file, apart.
struct FileStamp {
  std::uint64_t device = 0;  // of the file system
  std::uint64_t inode = 0;
  std::int64_t size = 0;
  std::int64_t modified_s = 0;  // Unix time
  std::int64_t modified_ns = 0;

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// Returns the stamp of the file to which a path leads.
Result<FileStamp> stamp_of(const std::filesystem::path& path);

// Maps a whole file read-only; pages are read when they are touched. If the file is truncated while
// it is mapped, touching the lost pages ends the process, so ask unchanged() first.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // The address does not change when the object is moved.
  std::span<const std::byte> bytes() const { return bytes_; }

  // Fails if the mapped file was written or truncated since it was opened. A file that was replaced
  // by another one or removed stays readable here, as it was.
  Status unchanged() const;
  // Fails if opening the path again would give something else: the file was written, or another
  // one, or none, has its name now. Follows symbolic links.
  Status current() const;

 private:
  Status same_stamp(const struct stat& status, std::string_view what) const;

  std::filesystem::path path_;
  FileDescriptor file_{-1};
  FileStamp stamp_;
  std::span<const std::byte> bytes_;
};

// Releases the memory of the pages that lie wholly inside a piece of a MappedFile. A later access
// reads the file again.
void release_pages(std::span<const std::byte> piece);

}  // namespace protean

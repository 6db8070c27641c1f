#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "base/result.h"
#include "model/file_descriptor.h"

namespace protean {

// The folder of one model in a cache of packed weights, marked as in use: while this object lives,
// trim_cache() does not touch the folder in any process.
class CacheFolder {
 public:
  // Creates the folder if it does not exist and records the time of use. A read-only folder is used
  // without that. `name` is ModelIdentity::hex().
  static Result<CacheFolder> open(const std::filesystem::path& directory, const std::string& name);

  const std::filesystem::path& path() const { return path_; }

 private:
  CacheFolder(std::filesystem::path path, FileDescriptor in_use)
      : path_(std::move(path)), in_use_(std::move(in_use)) {}

  std::filesystem::path path_;
  FileDescriptor in_use_;  // holds a shared lock
};

struct CacheTrim {
  int models = 0;  // models whose weights were removed
  std::int64_t removed_bytes = 0;
  std::int64_t kept_bytes = 0;
};

// Removes the packed weights of whole models that are not in use, the longest unused first, until
// the rest takes at most `most_bytes` or is in use. Touches only files of packed weights in folders
// of models; profiles and other files stay.
CacheTrim trim_cache(const std::filesystem::path& directory, std::int64_t most_bytes);

}  // namespace protean

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "base/result.h"
#include "model/file_descriptor.h"

namespace protean {

// The folder of one model in a cache of packed layers, and the word to all processes that it is in
// use: while this lives, trim_cache() of none of them touches it.
class CacheFolder {
 public:
  // Makes the folder if it is not there, and notes the time. One that can only be read is taken as
  // it is. `name` is a ModelIdentity's hex().
  static Result<CacheFolder> open(const std::filesystem::path& directory, const std::string& name);

  const std::filesystem::path& path() const { return path_; }

 private:
  CacheFolder(std::filesystem::path path, FileDescriptor in_use)
      : path_(std::move(path)), in_use_(std::move(in_use)) {}

  std::filesystem::path path_;
  FileDescriptor in_use_;  // a lock that many share
};

struct CacheTrim {
  int models = 0;  // whose layers were removed
  std::int64_t removed_bytes = 0;
  std::int64_t kept_bytes = 0;
};

// Removes the packed layers of models that nobody uses, the longest unused first and each model's
// whole, until what is left takes at most so many bytes or is in use. Touches only files that it
// knows, in folders named as it names them: what else lies there, profiles too, stays.
CacheTrim trim_cache(const std::filesystem::path& directory, std::int64_t most_bytes);

}  // namespace protean

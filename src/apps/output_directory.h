#pragma once

#include <filesystem>

#include "base/result.h"

namespace protean {

// A model directory that appears whole or not at all: files are written to a temporary directory
// next to it, which finish() renames. Without finish(), the destructor deletes it.
class OutputDirectory {
 public:
  // Fails if `target` exists, unless it is an empty directory, or a model and `overwrite` is set.
  static Result<OutputDirectory> create(const std::filesystem::path& target, bool overwrite);
  ~OutputDirectory();
  OutputDirectory(OutputDirectory&& other) noexcept;
  OutputDirectory& operator=(OutputDirectory&&) = delete;

  const std::filesystem::path& path() const { return unfinished_; }  // to write into
  Status finish();

 private:
  OutputDirectory() = default;

  std::filesystem::path target_;
  std::filesystem::path unfinished_;  // empty once finished
};

// Copies the files of a model that are not weights, such as tokenizer, chat template and licence,
// except config.json.
Status copy_companions(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace protean

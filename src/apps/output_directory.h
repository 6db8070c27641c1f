#pragma once

#include <filesystem>

#include "base/result.h"

namespace protean {

// A model directory that appears whole or not at all: files are written beside it and take its name
// at the end. What is left unfinished goes away with the object.
class OutputDirectory {
 public:
  // Fails where there is something already, unless it is an empty directory or may be overwritten;
  // and never overwrites what is no model.
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

// Copies what stands beside a model's weights: tokenizer, templates, licence; not config.json.
Status copy_companions(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace protean

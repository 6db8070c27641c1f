#pragma once

#include <filesystem>
#include <map>
#include <vector>

#include "base/result.h"
#include "model/mapped_file.h"

namespace protean {

// Notices whether loading a model again would read other files. Knows files by their stamps, not by
// their contents.
class SeenFiles {
 public:
  // Keeps the state of a file, or of all files of a folder that loading a model may read: weights,
  // tokenizers, chat templates and JSON files.
  void see(const std::filesystem::path& path);

  // Fails if a file was written, replaced, added or removed since, which names it. The code is
  // kNotFound if it was removed.
  Status current() const;

 private:
  using Stamps = std::map<std::filesystem::path, FileStamp>;
  static void look_at(const std::filesystem::path& path, Stamps& stamps);

  std::vector<std::filesystem::path> paths_;  // files and folders
  Stamps stamps_;                             // of files
};

}  // namespace protean

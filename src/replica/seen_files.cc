#include "replica/seen_files.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

namespace protean {
namespace {

namespace fs = std::filesystem;

bool may_be_read(const fs::path& file) {
  constexpr std::array<std::string_view, 6> kEndings = {".bpe",   ".jinja",       ".json",
                                                        ".model", ".safetensors", ".txt"};
  return std::ranges::find(kEndings, file.extension().string()) != kEndings.end();
}

}  // namespace

void SeenFiles::see(const fs::path& path) {
  paths_.push_back(path);
  look_at(path, stamps_);
}

void SeenFiles::look_at(const fs::path& path, Stamps& stamps) {
  const auto add = [&](const fs::path& file) {
    if (const auto stamp = stamp_of(file); stamp.ok()) {
      stamps.insert_or_assign(file, *stamp);
    }
  };
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    add(path);
    return;
  }
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (may_be_read(entry->path())) {
      add(entry->path());
    }
  }
}

Status SeenFiles::current() const {
  Stamps now;
  for (const fs::path& path : paths_) {
    look_at(path, now);
  }
  for (const auto& [file, stamp] : stamps_) {
    if (!now.contains(file)) {
      return make_error(ErrorCode::kNotFound, "{} is gone since the model was opened",
                        file.string());
    }
  }
  for (const auto& [file, stamp] : now) {
    const auto before = stamps_.find(file);
    if (before == stamps_.end() || before->second != stamp) {
      return make_error(ErrorCode::kCorrupt,
                        "{} was written, replaced or added after the model was opened",
                        file.string());
    }
  }
  return {};
}

}  // namespace protean

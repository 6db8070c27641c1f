#include "apps/output_directory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <utility>

namespace protean {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostCompanionBytes = 256U << 20U;

bool holds_model(const fs::path& directory) {
  std::error_code error;
  if (fs::exists(directory / "config.json", error)) {
    return true;
  }
  const fs::directory_iterator entries(directory, error);
  return std::any_of(begin(entries), end(entries),
                     [](const auto& entry) { return entry.path().extension() == ".gguf"; });
}

Status check_target(const fs::path& target, bool overwrite) {
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (!fs::exists(status) || (fs::is_directory(status) && fs::is_empty(target, error))) {
    return {};
  }
  if (!fs::is_directory(status) || !holds_model(target)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} exists and is no model directory: give -o another name", target.string());
  }
  if (!overwrite) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} exists: give -o another name, or --overwrite to replace it",
                      target.string());
  }
  return {};
}

bool is_weights(const fs::path& path) {
  static constexpr std::array<std::string_view, 10> kEndings = {
      ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz"};
  const std::string name = path.filename().string();
  return name.ends_with(".index.json") ||
         std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

Result<OutputDirectory> OutputDirectory::create(const fs::path& target, bool overwrite) {
  OutputDirectory directory;
  directory.target_ = fs::absolute(target).lexically_normal();
  if (!directory.target_.has_filename()) {
    directory.target_ = directory.target_.parent_path();  // "model/" is the same as "model"
  }
  if (const Status free = check_target(directory.target_, overwrite); !free) {
    return free.error();
  }
  fs::path unfinished = directory.target_;
  unfinished += fmt::format(".unfinished-{}", ::getpid());
  std::error_code error;
  fs::create_directories(directory.target_.parent_path(), error);
  if (!fs::create_directory(unfinished, error)) {
    return make_error(ErrorCode::kInvalidArgument, "{} cannot be written: {}", unfinished.string(),
                      error ? error.message() : "it exists");
  }
  directory.unfinished_ = std::move(unfinished);
  return directory;
}

OutputDirectory::~OutputDirectory() {
  if (!unfinished_.empty()) {
    std::error_code ignored;
    fs::remove_all(unfinished_, ignored);
  }
}

OutputDirectory::OutputDirectory(OutputDirectory&& other) noexcept
    : target_(std::move(other.target_)), unfinished_(std::exchange(other.unfinished_, {})) {}

Status OutputDirectory::finish() {
  std::error_code error;
  fs::path replaced;
  if (fs::exists(target_, error)) {
    replaced = target_;
    replaced += fmt::format(".replaced-{}", ::getpid());
    fs::rename(target_, replaced, error);
  }
  if (!error) {
    fs::rename(unfinished_, target_, error);
  }
  if (error) {
    std::error_code ignored;
    if (!replaced.empty() && !fs::exists(target_, ignored)) {
      fs::rename(replaced, target_, ignored);
    }
    return make_error(ErrorCode::kInternal, "{} cannot be put in place: {}", target_.string(),
                      error.message());
  }
  unfinished_.clear();
  if (!replaced.empty()) {
    fs::remove_all(replaced, error);
  }
  return {};
}

Status copy_companions(const fs::path& from, const fs::path& to) {
  std::error_code error;
  for (fs::directory_iterator entry(from, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    std::error_code ignored;
    if (!entry->is_regular_file(ignored) || path.filename() == "config.json" || is_weights(path) ||
        entry->file_size(ignored) > kMostCompanionBytes) {
      continue;
    }
    fs::copy_file(path, to / path.filename(), error);
    if (error) {
      const auto space = fs::space(to, ignored);
      const bool full = !ignored && space.available < entry->file_size(ignored);
      return make_error(ErrorCode::kInternal, "{} cannot be copied to {}: {}", path.string(),
                        to.string(), full ? "no space left on device" : error.message());
    }
  }
  return error ? Status(make_error(ErrorCode::kNotFound, "{} cannot be read: {}", from.string(),
                                   error.message()))
               : Status();
}

}  // namespace protean

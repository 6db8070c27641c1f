#include "model/variant_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace protean {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kInUse = "in-use";
constexpr std::string_view kPacked[] = {"layer-", "embeddings.",
                                        "tables."};  // "tables." until version 4
constexpr int kTries = 100;  // each after another process removed the folder

struct ModelFolder {
  fs::path path;
  fs::file_time_type used_at;
  std::int64_t bytes = 0;  // size of packed weights
};

bool is_model(std::string_view name) {
  return name.size() == 32 && std::all_of(name.begin(), name.end(), [](char digit) {
           return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
         });
}

// Visits the files of packed weights in a folder. Skips files that cannot be examined: they are
// gone or belong to another user.
template <class Visit>
void for_each_packed(const fs::path& folder, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    const std::string name = at->path().filename();
    if (std::any_of(std::begin(kPacked), std::end(kPacked),
                    [&](std::string_view begin) { return name.starts_with(begin); }) &&
        fs::is_regular_file(at->symlink_status(gone))) {
      visit(at->path());
    }
  }
}

std::int64_t bytes_of(const fs::path& file) {
  std::error_code gone;
  const std::uintmax_t bytes = fs::file_size(file, gone);
  return gone ? 0 : static_cast<std::int64_t>(bytes);
}

std::vector<ModelFolder> model_folders(const fs::path& directory) {
  std::vector<ModelFolder> found;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (!is_model(at->path().filename().string()) || !fs::is_directory(at->symlink_status(gone))) {
      continue;
    }
    ModelFolder& folder = found.emplace_back();
    folder.path = at->path();
    folder.used_at = fs::last_write_time(folder.path / kInUse, gone);
    if (gone) {
      folder.used_at = fs::last_write_time(folder.path, gone);
    }
    for_each_packed(folder.path, [&](const fs::path& file) { folder.bytes += bytes_of(file); });
  }
  std::sort(found.begin(), found.end(), [](const ModelFolder& a, const ModelFolder& b) {
    return std::pair(a.used_at, a.path) < std::pair(b.used_at, b.path);
  });
  return found;
}

bool holds_only(const fs::path& folder, std::string_view name) {
  std::error_code error;
  fs::directory_iterator at(folder, error);
  for (const fs::directory_iterator end; !error && at != end; at.increment(error)) {
    if (at->path().filename() != name) {
      return false;
    }
  }
  return !error;
}

// Opens a file for writing, or for reading if it cannot be written.
int open_shared(const fs::path& file) {
  const int writable = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  return writable >= 0 || errno == ENOENT ? writable : ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
}

// Removes a folder's packed weights and returns their bytes; 0 if the folder is in use or cannot be
// locked.
std::int64_t remove_packed(const fs::path& folder) {
  const fs::path in_use = folder / kInUse;
  const FileDescriptor lock(::open(in_use.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return 0;
  }
  std::vector<fs::path> files;
  for_each_packed(folder, [&](const fs::path& file) { files.push_back(file); });
  std::int64_t removed = 0;
  std::error_code error;
  for (const fs::path& file : files) {
    const std::int64_t bytes = bytes_of(file);
    removed += fs::remove(file, error) ? bytes : 0;
  }
  // Removes the folder too if it is empty. A process that waits for the lock then finds its file
  // gone.
  fs::remove(folder / "lock", error);
  if (holds_only(folder, kInUse)) {
    fs::remove(in_use, error);
    fs::remove(folder, error);
  }
  return removed;
}

}  // namespace

Result<CacheFolder> CacheFolder::open(const fs::path& directory, const std::string& name) {
  const fs::path path = directory / name;
  const fs::path in_use = path / kInUse;
  std::error_code error;
  for (int i = 0; i < kTries; ++i) {
    fs::create_directories(path, error);
    FileDescriptor file(open_shared(in_use));
    if (!file.valid() && errno == ENOENT && !error) {
      continue;  // removed by another process
    }
    if (!file.valid()) {
      break;
    }
    struct stat status {};
    (void)::flock(file.get(), LOCK_SH);
    if (::fstat(file.get(), &status) != 0 || status.st_nlink == 0) {
      continue;
    }
    (void)::futimens(file.get(), nullptr);
    return CacheFolder(path, std::move(file));
  }
  std::error_code unknown;
  if (fs::is_directory(path, unknown)) {
    return CacheFolder(path, FileDescriptor(-1));
  }
  return make_error(ErrorCode::kInternal, "{} cannot be made: {}", path.string(), error.message());
}

CacheTrim trim_cache(const fs::path& directory, std::int64_t most_bytes) {
  CacheTrim trim;
  const std::vector<ModelFolder> folders = model_folders(directory);
  for (const ModelFolder& folder : folders) {
    trim.kept_bytes += folder.bytes;
  }
  for (const ModelFolder& folder : folders) {
    if (trim.kept_bytes <= most_bytes) {
      break;
    }
    const std::int64_t removed = folder.bytes == 0 ? 0 : remove_packed(folder.path);
    trim.models += removed > 0 ? 1 : 0;
    trim.removed_bytes += removed;
    trim.kept_bytes -= removed;
  }
  return trim;
}

}  // namespace protean

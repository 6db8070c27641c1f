#include "hub/cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <utility>

#include "hub/file_lock.h"
#include "hub/needed_files.h"

namespace protean::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModels = "models--";
constexpr std::string_view kIncomplete = ".incomplete";
constexpr std::string_view kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder holds models that can be fetched again: backups may leave it out.\n";

std::string folder_name(std::string_view repo) {
  std::string name(kModels);
  for (const char c : repo) {
    name += c == '/' ? std::string("--") : std::string(1, c);
  }
  return name;
}

// Returns "ORG/NAME" for a folder's name, or nothing. Names without an organisation are of old
// repositories, which have another name now.
std::optional<std::string> repo_of_folder(const std::string& name) {
  if (!name.starts_with(kModels)) {
    return std::nullopt;
  }
  std::string repo = name.substr(kModels.size());
  if (const std::size_t split = repo.find("--"); split != repo.npos) {
    repo.replace(split, 2, "/");
  }
  const auto parsed = parse_model_name(repo);
  return parsed.ok() && parsed->repo == repo ? std::optional(repo) : std::nullopt;
}

Error cannot_write(const fs::path& path, const std::error_code& why) {
  return make_error(ErrorCode::kInvalidArgument, "cannot write {}: {}", path.string(),
                    why.message());
}

// Replaces a file in one step, so that no reader sees a part of it.
Status write_file(const fs::path& path, std::string_view text) {
  const fs::path draft = fmt::format("{}.{}.tmp", path.string(), ::getpid());
  std::ofstream file(draft, std::ios::binary);
  file << text << std::flush;
  std::error_code failed;
  if (!file) {
    return cannot_write(draft, std::make_error_code(std::errc::io_error));
  }
  fs::rename(draft, path, failed);
  return failed ? Status(cannot_write(path, failed)) : Status();
}

std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Calls `visit` with each entry below a folder, except folders.
void visit_files(const fs::path& folder, const std::function<void(const fs::path&)>& visit) {
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::error_code ignored;
    if (!entry->is_directory(ignored) || entry->is_symlink(ignored)) {
      visit(entry->path());
    }
  }
}

std::int64_t bytes_of(const fs::path& path) {
  std::error_code failed;
  const auto size = fs::file_size(path, failed);
  return failed ? 0 : static_cast<std::int64_t>(size);
}

CachedRepo read_repo(const fs::path& folder, std::string repo) {
  CachedRepo cached{.repo = std::move(repo)};
  visit_files(folder / "blobs", [&](const fs::path& path) {
    cached.bytes += bytes_of(path);
    cached.incomplete += path.extension() == kIncomplete ? 1 : 0;
  });
  std::map<std::string, CachedSnapshot> snapshots;
  std::error_code failed;
  for (fs::directory_iterator entry(folder / "snapshots", failed), end; !failed && entry != end;
       entry.increment(failed)) {
    CachedSnapshot& snapshot = snapshots[entry->path().filename().string()];
    snapshot.commit = entry->path().filename().string();
    visit_files(entry->path(), [&](const fs::path& path) {
      std::error_code broken;
      if (fs::is_regular_file(path, broken)) {
        snapshot.file_bytes[path.lexically_relative(entry->path()).string()] = bytes_of(path);
      }
    });
  }
  visit_files(folder / "refs", [&](const fs::path& path) {
    if (const auto found = snapshots.find(read_line(path)); found != snapshots.end()) {
      found->second.refs.push_back(path.lexically_relative(folder / "refs").string());
    }
  });
  for (auto& [commit, snapshot] : snapshots) {
    std::sort(snapshot.refs.begin(), snapshot.refs.end());
    cached.snapshots.push_back(std::move(snapshot));
  }
  return cached;
}

// The blobs that links in a folder lead to.
std::set<fs::path> linked_blobs(const fs::path& folder) {
  std::set<fs::path> blobs;
  visit_files(folder, [&](const fs::path& path) {
    std::error_code failed;
    const fs::path target = fs::read_symlink(path, failed);
    if (!failed) {
      blobs.insert(target.filename());
    }
  });
  return blobs;
}

// Takes the locks of all blobs of a repository.
Result<std::vector<FileLock>> lock_all(const fs::path& folder) {
  std::vector<FileLock> held;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    auto lock = FileLock::try_lock(entry->path());
    if (!lock.ok()) {
      return lock.error();
    }
    if (!lock->has_value()) {
      return make_error(ErrorCode::kUnavailable,
                        "another process is fetching it: wait for its end, or end it");
    }
    held.push_back(**std::move(lock));
  }
  return held;
}

// Removes a file and the folders that it leaves empty, up to `top`.
void remove_upwards(const fs::path& path, const fs::path& top) {
  std::error_code failed;
  fs::remove(path, failed);
  for (fs::path folder = path.parent_path(); folder != top && !failed;
       folder = folder.parent_path()) {
    fs::remove(folder, failed);  // fails if it is not empty
  }
}

}  // namespace

fs::path Cache::folder(std::string_view repo) const {
  return root_ / folder_name(repo);
}
fs::path Cache::snapshot(std::string_view repo, std::string_view commit) const {
  return folder(repo) / "snapshots" / commit;
}
fs::path Cache::blob(std::string_view repo, std::string_view digest) const {
  return folder(repo) / "blobs" / digest;
}
fs::path Cache::lock(std::string_view repo, std::string_view digest) const {
  return root_ / ".locks" / folder_name(repo) / fmt::format("{}.lock", digest);
}

std::optional<std::string> Cache::commit_of(const ModelName& name) const {
  if (is_commit(name.branch())) {
    return name.branch();
  }
  const std::string commit = read_line(folder(name.repo) / "refs" / name.branch());
  return is_commit(commit) ? std::optional(commit) : std::nullopt;
}

Status Cache::prepare(std::string_view repo) const {
  std::error_code failed;
  for (const fs::path& path : {folder(repo) / "blobs", folder(repo) / "snapshots",
                               folder(repo) / "refs", root_ / ".locks" / folder_name(repo)}) {
    fs::create_directories(path, failed);
    if (failed) {
      return cannot_write(path, failed);
    }
  }
  const fs::path tag = root_ / "CACHEDIR.TAG";
  return fs::exists(tag, failed) ? Status() : write_file(tag, kCacheTag);
}

Status Cache::set_ref(const ModelName& name, const std::string& commit) const {
  if (name.branch() == commit || commit_of(name) == commit) {
    return {};
  }
  const fs::path path = folder(name.repo) / "refs" / name.branch();
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  return failed ? Status(cannot_write(path, failed)) : write_file(path, commit);
}

Status Cache::link(std::string_view repo, std::string_view commit, const std::string& path,
                   std::string_view digest) const {
  const fs::path place = snapshot(repo, commit) / path;
  std::error_code failed;
  fs::create_directories(place.parent_path(), failed);
  if (failed) {
    return cannot_write(place, failed);
  }
  const fs::path target = blob(repo, digest).lexically_relative(place.parent_path());
  if (fs::read_symlink(place, failed) == target) {
    return {};
  }
  const fs::path draft = fmt::format("{}.{}.tmp", place.string(), ::getpid());
  fs::remove(draft, failed);
  fs::create_symlink(target, draft, failed);
  if (!failed) {
    fs::rename(draft, place, failed);
  }
  return failed ? Status(cannot_write(place, failed)) : Status();
}

std::vector<CachedRepo> Cache::list() const {
  std::vector<CachedRepo> repos;
  std::error_code failed;
  for (fs::directory_iterator entry(root_, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (auto repo = repo_of_folder(entry->path().filename().string())) {
      repos.push_back(read_repo(entry->path(), *std::move(repo)));
    }
  }
  std::sort(repos.begin(), repos.end(),
            [](const CachedRepo& a, const CachedRepo& b) { return a.repo < b.repo; });
  return repos;
}

std::optional<CachedRepo> Cache::find(std::string_view repo) const {
  std::error_code failed;
  const fs::path path = folder(repo);
  return fs::is_directory(path, failed) ? std::optional(read_repo(path, std::string(repo)))
                                        : std::nullopt;
}

Error Cache::not_cached(const ModelName& name) const {
  return make_error(ErrorCode::kNotFound, "{} is not in the cache {}", to_string(name),
                    root_.string());
}

Result<std::int64_t> Cache::remove(const ModelName& name) const {
  const auto repo = find(name.repo);
  if (!repo) {
    return not_cached(name);
  }
  const auto locks = lock_all(root_ / ".locks" / folder_name(name.repo));
  if (!locks.ok()) {
    return make_error(locks.error().code, "{}: {}", name.repo, locks.error().message);
  }
  return name.file.empty() && name.revision.empty() ? remove_repo(*repo)
                                                    : remove_snapshot(*repo, name);
}

Result<std::int64_t> Cache::remove_repo(const CachedRepo& repo) const {
  std::error_code failed;
  for (const fs::path& path : {folder(repo.repo), root_ / ".locks" / folder_name(repo.repo)}) {
    fs::remove_all(path, failed);
    if (failed) {
      return cannot_write(path, failed);
    }
  }
  return repo.bytes;
}

Result<std::int64_t> Cache::remove_snapshot(const CachedRepo& repo, const ModelName& name) const {
  const auto commit = commit_of(name);
  const fs::path place = snapshot(name.repo, commit.value_or("none"));
  std::error_code failed;
  if (!fs::is_directory(place, failed)) {
    return not_cached(name);
  }
  std::set<fs::path> blobs;
  if (name.file.empty()) {
    blobs = linked_blobs(place);
    fs::remove_all(place, failed);
  } else {
    const auto model = look_into_snapshot(name, place);
    if (!model.ok() || !model->missing.empty()) {
      return not_cached(name);
    }
    blobs = {fs::read_symlink(model->path, failed).filename()};
    remove_upwards(model->path, place.parent_path());
  }
  const std::set<fs::path> used = linked_blobs(place.parent_path());
  for (const fs::path& digest : blobs) {
    if (!used.contains(digest)) {
      fs::remove(folder(name.repo) / "blobs" / digest, failed);
    }
  }
  visit_files(folder(name.repo) / "refs", [&](const fs::path& path) {
    if (!fs::exists(place.parent_path() / read_line(path), failed)) {
      fs::remove(path, failed);
    }
  });
  const auto left = find(name.repo);
  if (left && left->snapshots.empty()) {
    const auto rest = remove_repo(*left);
    return rest.ok() ? Result<std::int64_t>(repo.bytes) : rest;
  }
  return repo.bytes - (left ? left->bytes : 0);
}

std::optional<std::string> name_of_snapshot(const fs::path& path) {
  fs::path folder = fs::absolute(path).lexically_normal();
  if (!folder.has_filename()) {
    folder = folder.parent_path();
  }
  const fs::path snapshots = folder.parent_path();
  return snapshots.filename() == "snapshots" && is_commit(folder.filename().string())
             ? repo_of_folder(snapshots.parent_path().filename().string())
             : std::nullopt;
}

}  // namespace protean::hub

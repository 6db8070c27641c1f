#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/model_name.h"

namespace protean::hub {

// A revision of a repository in the cache.
struct CachedSnapshot {
  std::string commit;
  std::vector<std::string> refs;                   // branches and tags that point to it, sorted
  std::map<std::string, std::int64_t> file_bytes;  // path to size, of files that are complete
};

struct CachedRepo {
  std::string repo;                       // "ORG/NAME"
  std::int64_t bytes = 0;                 // size of all blobs, also incomplete ones
  std::int64_t incomplete = 0;            // blobs whose download has not ended
  std::vector<CachedSnapshot> snapshots;  // sorted by commit
};

// The folder in which models are kept. Its layout is that of the Python package huggingface_hub, so
// that all programs share what one of them fetched:
//
//   models--ORG--NAME/blobs/DIGEST              contents, once for all revisions
//   models--ORG--NAME/blobs/DIGEST.incomplete   a download that goes on where it ended
//   models--ORG--NAME/snapshots/COMMIT/PATH     a relative link to a blob
//   models--ORG--NAME/refs/REVISION             the commit of a branch or tag
//   .locks/models--ORG--NAME/DIGEST.lock        locked (flock) while a blob is written
class Cache {
 public:
  explicit Cache(std::filesystem::path root) : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path folder(std::string_view repo) const;
  std::filesystem::path snapshot(std::string_view repo, std::string_view commit) const;
  std::filesystem::path blob(std::string_view repo, std::string_view digest) const;
  std::filesystem::path lock(std::string_view repo, std::string_view digest) const;

  // Returns the commit that a revision pointed to when it was last fetched, or nothing.
  std::optional<std::string> commit_of(const ModelName& name) const;

  // Creates the folders of a repository.
  Status prepare(std::string_view repo) const;
  Status set_ref(const ModelName& name, const std::string& commit) const;
  // Makes `path` of a snapshot a link to a blob.
  Status link(std::string_view repo, std::string_view commit, const std::string& path,
              std::string_view digest) const;

  std::vector<CachedRepo> list() const;  // sorted by name
  std::optional<CachedRepo> find(std::string_view repo) const;

  // Removes one GGUF if the name has a file, one snapshot if it has a revision, and otherwise the
  // whole repository. Blobs that another snapshot uses stay. Returns the bytes that were freed.
  // Fails with kNotFound if it is not in the cache, and with kUnavailable while a process fetches
  // the repository.
  Result<std::int64_t> remove(const ModelName& name) const;

 private:
  Result<std::int64_t> remove_repo(const CachedRepo& repo) const;
  Result<std::int64_t> remove_snapshot(const CachedRepo& repo, const ModelName& name) const;
  Error not_cached(const ModelName& name) const;

  std::filesystem::path root_;
};

// Returns ORG/NAME if `path` is the folder of a snapshot in a cache, otherwise nothing.
std::optional<std::string> name_of_snapshot(const std::filesystem::path& path);

}  // namespace protean::hub

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean::hub {

// A file of a repository as the hub lists it.
struct RepoFile {
  std::string path;        // relative to the repository, checked: it leads nowhere else
  std::int64_t size = -1;  // bytes; -1: not stated
  std::string digest;      // SHA-256 in 64, or git's SHA-1 of a blob in 40 hexadecimal digits;
                           // empty: not stated. It names the blob in the cache
};

struct RepoListing {
  std::string commit;
  std::vector<RepoFile> files;
};

// Parses the answer to /api/models/ORG/NAME/revision/REVISION. Fails if a path could lead out of
// the repository's folder, if one is listed twice, or if the answer is not such a listing.
Result<RepoListing> parse_repo_listing(std::string_view text);

// True for a relative path of plain names: no "..", no empty part, no control character.
bool is_safe_path(std::string_view path);

// True for 40 or 64 lower-case hexadecimal digits.
bool is_digest(std::string_view text);

}  // namespace protean::hub

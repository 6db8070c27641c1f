#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/model_name.h"
#include "hub/needed_files.h"
#include "hub/settings.h"

namespace protean::hub {

// What a pull is about to fetch.
struct PullSummary {
  std::string commit;
  std::size_t files = 0;         // files of the model, with those in the cache
  std::int64_t bytes = 0;        // bytes of all files
  std::int64_t fetch_bytes = 0;  // bytes that are not in the cache
  std::int64_t free_bytes = 0;   // free space on the cache's disk
};

// What a pull tells its caller, on the caller's thread. Each may be empty.
struct PullEvents {
  std::function<void(const PullSummary&)> on_summary;  // before the first byte of a file
  std::function<void(std::int64_t done, std::int64_t total)> on_bytes;
  std::function<void(const std::string& note)> on_note;  // a request failed and is tried again
};

// Fetches what a model needs and the cache lacks, several files at once, and returns the snapshot's
// folder or the GGUF in it. Each file is checked against the digest that the hub states; one that
// is wrong is fetched once more. Every file of a pull is of one commit, even if the revision moves
// meanwhile. Received bytes stay in the cache even if the pull fails. Blocks until it ends.
Result<std::filesystem::path> pull(const HubSettings& settings, const ModelName& name,
                                   const PullEvents& events);

// Returns what the cache has of the revision that was fetched last, or nothing. Opens no
// connection.
Result<std::optional<LocalModel>> find_in_cache(const HubSettings& settings, const ModelName& name);

// Returns a model that is in the cache as a whole, and otherwise pulls it.
Result<std::filesystem::path> obtain(const HubSettings& settings, const ModelName& name,
                                     const PullEvents& events);

}  // namespace protean::hub

#pragma once

#include <cstdint>
#include <map>
#include <span>

namespace protean {

// Returns the bytes that each link carries. `links` names the link of each device, and `bytes` has
// what each device receives.
std::map<int, std::int64_t> bytes_by_link(std::span<const int> links,
                                          std::span<const std::int64_t> bytes);

// Returns the most bytes that one link carries. Without `links`, each device has a link to itself.
std::int64_t most_bytes(std::span<const int> links, std::span<const std::int64_t> bytes);

}  // namespace protean

#include "cost/link_bytes.h"

#include <algorithm>

namespace protean {

std::map<int, std::int64_t> bytes_by_link(std::span<const int> links,
                                          std::span<const std::int64_t> bytes) {
  std::map<int, std::int64_t> sums;
  for (std::size_t device = 0; device < bytes.size(); ++device) {
    sums[links[device]] += bytes[device];
  }
  return sums;
}

std::int64_t most_bytes(std::span<const int> links, std::span<const std::int64_t> bytes) {
  if (links.empty()) {
    return *std::max_element(bytes.begin(), bytes.end());
  }
  std::int64_t most = 0;
  for (const auto& [link, sum] : bytes_by_link(links, bytes)) {
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace protean

#include "contract/holding.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace protean {

ShardRun widened(const ShardRun& run, int count) {
  return run.empty() || run.count >= count ? run : ShardRun{run.first / count * count, count};
}

int new_shards(const ShardRun& run, const ShardRun& had) {
  const int shared = std::min(run.end(), had.end()) - std::max(run.first, had.first);
  return run.count - std::max(0, shared);
}

Holding whole_model(int layers, int shards, DeviceId device) {
  const ShardRun all{0, shards};
  return {.device = device,
          .layers = std::vector<Holding::Layer>(static_cast<std::size_t>(layers), {all, all}),
          .embeddings = all};
}

// Runs are aligned, so two of them are apart or one is inside the other. Taking the longest run
// that begins where the copy ends, again and again, therefore finds a whole copy wherever there is
// one.
std::vector<Copy> copies_of(std::span<const Holding> group, int layer, Component component,
                            int shards) {
  std::vector<int> left(group.size());
  std::iota(left.begin(), left.end(), 0);
  const auto run_of = [&](int device) -> const ShardRun& {
    return group[static_cast<std::size_t>(device)].of(layer, component);
  };
  std::erase_if(left, [&](int device) { return run_of(device).empty(); });
  std::vector<Copy> copies;
  while (!left.empty()) {
    Copy copy;
    int next = 0;
    while (next < shards) {
      auto longest = left.end();
      for (auto at = left.begin(); at != left.end(); ++at) {
        const ShardRun& run = run_of(*at);
        if (run.first == next && (longest == left.end() || run.count > run_of(*longest).count)) {
          longest = at;
        }
      }
      if (longest == left.end()) {
        return {};
      }
      next = run_of(*longest).end();
      copy.push_back(*longest);
      left.erase(longest);
    }
    copies.push_back(std::move(copy));
  }
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) {
    return *std::min_element(a.begin(), a.end()) < *std::min_element(b.begin(), b.end());
  });
  return copies;
}

}  // namespace protean

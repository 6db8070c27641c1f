#include "fleet/balancing.h"

#include <algorithm>

#include "base/check.h"

namespace protean {
namespace {

// Free blocks for each request, below which a replica gives requests away (a parameter of Llumnix,
// section 4.4).
constexpr double kShortOfBlocks = 3;

// Returns the freeness of a replica that has so many blocks in use and requests more.
double freeness_with(Observation load, std::int64_t blocks, int requests) {
  load.kv_blocks_used += blocks;
  load.running += requests;
  return freeness(load);
}

}  // namespace

std::string_view to_string(MigratePolicy policy) {
  switch (policy) {
    case MigratePolicy::kOff:
      return "off";
    case MigratePolicy::kLoad:
      return "load";
  }
  check(false, "every policy has a name");
  return {};
}

Result<MigratePolicy> parse_migrate(std::string_view name) {
  for (const MigratePolicy policy : {MigratePolicy::kOff, MigratePolicy::kLoad}) {
    if (to_string(policy) == name) {
      return policy;
    }
  }
  return make_error(ErrorCode::kInvalidArgument, "--migrate {}: use off or load", name);
}

std::vector<std::pair<std::size_t, std::size_t>> pair_by_freeness(
    std::span<const BalanceCandidate> candidates) {
  std::vector<std::pair<double, std::size_t>> givers;
  std::vector<std::pair<double, std::size_t>> takers;  // the freest first
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const BalanceCandidate& candidate = candidates[i];
    if (candidate.freeness < kShortOfBlocks) {
      givers.emplace_back(candidate.freeness, i);
    } else if (candidate.has_place) {
      takers.emplace_back(-candidate.freeness, i);
    }
  }
  std::sort(givers.begin(), givers.end());
  std::sort(takers.begin(), takers.end());
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t i = 0; i < std::min(givers.size(), takers.size()); ++i) {
    pairs.emplace_back(givers[i].second, takers[i].second);
  }
  return pairs;
}

bool evens_out(const Observation& giver, const Observation& taker, std::int64_t blocks) {
  return freeness_with(taker, blocks, 1) >=
         std::max(kShortOfBlocks, freeness_with(giver, -blocks, -1));
}

}  // namespace protean

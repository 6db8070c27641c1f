#include "fleet/scaling.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace protean {
namespace {

constexpr double kMostUsedShare = 0.5;  // of KV in a group that parts (AMOEBA section 3.3)

// Returns the least loaded candidates of this size; nothing if there are fewer than `count`.
std::optional<std::vector<ReplicaId>> least_loaded(std::span<const ScaleCandidate> candidates,
                                                   int replicas, std::size_t count) {
  std::vector<ScaleCandidate> found;
  std::copy_if(
      candidates.begin(), candidates.end(), std::back_inserter(found),
      [replicas](const ScaleCandidate& candidate) { return candidate.replicas == replicas; });
  if (found.size() < count) {
    return std::nullopt;
  }
  std::stable_sort(
      found.begin(), found.end(),
      [](const ScaleCandidate& a, const ScaleCandidate& b) { return a.requests < b.requests; });
  std::vector<ReplicaId> chosen;
  for (std::size_t i = 0; i < count; ++i) {
    chosen.push_back(found[i].replica);
  }
  return chosen;
}

}  // namespace

std::string_view to_string(ScalePolicy policy) {
  switch (policy) {
    case ScalePolicy::kOff:
      return "off";
    case ScalePolicy::kPaper:
      return "paper";
    case ScalePolicy::kLayers:
      return "layers";
    case ScalePolicy::kNeighbours:
      return "neighbours";
    case ScalePolicy::kJoint:
      return "joint";
  }
  return "?";
}

Result<ScalePolicy> parse_scale(std::string_view name) {
  for (const ScalePolicy policy : {ScalePolicy::kOff, ScalePolicy::kPaper, ScalePolicy::kLayers,
                                   ScalePolicy::kNeighbours, ScalePolicy::kJoint}) {
    if (to_string(policy) == name) {
      return policy;
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "--scale {}: use off, paper, layers, neighbours or joint", name);
}

GroupBy divides_by(ScalePolicy policy) {
  return policy == ScalePolicy::kLayers ? GroupBy::kLayers : GroupBy::kShards;
}

std::optional<std::vector<ReplicaId>> choose_scale_up(std::span<const ScaleCandidate> candidates,
                                                      std::int64_t blocks,
                                                      std::span<const std::int64_t> blocks_of) {
  std::optional<std::vector<ReplicaId>> largest;
  for (std::size_t power = 0; power + 1 < blocks_of.size(); ++power) {
    auto two = least_loaded(candidates, 1 << power, 2);
    if (two && blocks_of[power + 1] >= blocks) {
      return two;
    }
    if (two) {
      largest = std::move(two);
    }
  }
  return largest;
}

std::optional<std::vector<ReplicaId>> choose_scale_layers(
    std::span<const ScaleCandidate> candidates, std::int64_t blocks,
    std::span<const std::int64_t> blocks_of) {
  for (std::size_t power = 1; power < blocks_of.size(); ++power) {
    if (blocks_of[power] >= blocks) {
      return least_loaded(candidates, 1, std::size_t{1} << power);
    }
  }
  return std::nullopt;
}

std::optional<std::vector<ReplicaId>> choose_neighbours(std::span<const ScaleCandidate> candidates,
                                                        ReplicaId at) {
  const auto unit_at = [&](std::int32_t first, std::int32_t replicas) {
    return std::any_of(candidates.begin(), candidates.end(), [&](const ScaleCandidate& candidate) {
      return candidate.replica.value == first && candidate.replicas == replicas;
    });
  };
  const auto own =
      std::find_if(candidates.begin(), candidates.end(), [&](const ScaleCandidate& candidate) {
        return at.value >= candidate.replica.value &&
               at.value < candidate.replica.value + candidate.replicas;
      });
  if (own == candidates.end() || own->replica.value % own->replicas != 0) {
    return std::nullopt;
  }
  std::int32_t left = own->replica.value & ~own->replicas;
  std::int32_t size = own->replicas;
  while (size > 0) {
    const std::int32_t right = left + size;
    const bool left_is_whole = unit_at(left, size);
    if (left_is_whole && unit_at(right, size)) {
      return std::vector{ReplicaId{left}, ReplicaId{right}};
    }
    left = left_is_whole ? right : left;  // the run that is not one candidate
    size /= 2;
  }
  return std::nullopt;
}

bool is_closing(const ScaleCandidate& candidate) {
  return candidate.formed_for_long && !candidate.holds_long;
}

bool may_scale_down(const ScaleCandidate& candidate) {
  return is_closing(candidate) && candidate.kv_used_share <= kMostUsedShare;
}

}  // namespace protean

#include "fleet/scaling.h"

#include <algorithm>
#include <bit>

namespace protean {
namespace {

constexpr double kMostUsedShare = 0.5;

// Returns the two least loaded units of this size; nothing if there are fewer.
std::optional<std::vector<ReplicaId>> two_of(std::span<const ScaleUnit> units, int replicas) {
  std::vector<ScaleUnit> found;
  std::copy_if(units.begin(), units.end(), std::back_inserter(found),
               [replicas](const ScaleUnit& unit) { return unit.replicas == replicas; });
  if (found.size() < 2) {
    return std::nullopt;
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const ScaleUnit& a, const ScaleUnit& b) { return a.requests < b.requests; });
  return std::vector{found[0].replica, found[1].replica};
}

}  // namespace

std::string_view to_string(ScalePolicy policy) {
  switch (policy) {
    case ScalePolicy::kOff:
      return "off";
    case ScalePolicy::kPaper:
      return "paper";
    case ScalePolicy::kNeighbours:
      return "neighbours";
  }
  return "?";
}

Result<ScalePolicy> parse_scale(std::string_view name) {
  for (const ScalePolicy policy :
       {ScalePolicy::kOff, ScalePolicy::kPaper, ScalePolicy::kNeighbours}) {
    if (to_string(policy) == name) {
      return policy;
    }
  }
  return make_error(ErrorCode::kInvalidArgument, "--scale {}: use off, paper or neighbours", name);
}

std::optional<std::vector<ReplicaId>> choose_scale_up(std::span<const ScaleUnit> units,
                                                      std::int64_t blocks,
                                                      std::span<const std::int64_t> blocks_of) {
  std::optional<std::vector<ReplicaId>> largest;
  for (std::size_t power = 0; power + 1 < blocks_of.size(); ++power) {
    auto two = two_of(units, 1 << power);
    if (two && blocks_of[power + 1] >= blocks) {
      return two;
    }
    if (two) {
      largest = std::move(two);
    }
  }
  return largest;
}

std::optional<std::vector<ReplicaId>> choose_neighbours(std::span<const ScaleUnit> units,
                                                        ReplicaId at) {
  const auto unit_at = [&](std::int32_t first, std::int32_t replicas) {
    return std::any_of(units.begin(), units.end(), [&](const ScaleUnit& unit) {
      return unit.replica.value == first && unit.replicas == replicas;
    });
  };
  const auto own = std::find_if(units.begin(), units.end(), [&](const ScaleUnit& unit) {
    return at.value >= unit.replica.value && at.value < unit.replica.value + unit.replicas;
  });
  if (own == units.end() || own->replica.value % own->replicas != 0) {
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
    left = left_is_whole ? right : left;  // the run that is not one unit
    size /= 2;
  }
  return std::nullopt;
}

bool is_closing(const ScaleUnit& unit) {
  return unit.replicas > 1 && !unit.holds_long;
}

bool may_scale_down(const ScaleUnit& unit) {
  return is_closing(unit) && unit.kv_used_share <= kMostUsedShare;
}

TimeNs HeldRequest::expires_ns() const {
  const bool begun = moved && moved->live.times.scheduled_ns >= 0;
  const TimeNs first_ns = begun ? -1 : asks().deadlines.first_token_ns;
  const TimeNs finish_ns = asks().deadlines.finish_ns;
  return first_ns < 0 ? finish_ns : finish_ns < 0 ? first_ns : std::min(first_ns, finish_ns);
}

}  // namespace protean

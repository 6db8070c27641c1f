#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/replica_id.h"
#include "base/result.h"
#include "contract/groups.h"

namespace protean {

// Whether replicas become groups for requests that none of them can hold.
enum class ScalePolicy : std::uint8_t {
  kOff,    // such requests are refused
  kPaper,  // AMOEBA section 3.3
  // The paper's baseline by layers (section 4.2.5, KunServe): 2, 4 or 8 replicas, the fewest that
  // hold the request, divide layers at once.
  kLayers,
  // The paper's baseline (section 4.2.4): the router does not look at what replicas can
  // hold, and the replica that it chose becomes one with its neighbours if it has to.
  kNeighbours,
  kJoint,  // the same for requests that nothing else can hold, and if a group is predicted to pay
};

std::string_view to_string(ScalePolicy policy);
// Reads the value of --scale. Fails with an error that lists all values.
Result<ScalePolicy> parse_scale(std::string_view name);

// Returns how the groups that the policy forms divide the model.
GroupBy divides_by(ScalePolicy policy);

// A replica or group as the policy sees it.
struct ScaleCandidate {
  ReplicaId replica;  // its first replica, which names it
  int replicas = 1;
  int requests = 0;              // running and waiting
  bool formed_for_long = false;  // the policy formed it
  bool holds_long = false;       // one of its requests needs more blocks than its homes have
  double kv_used_share = 0;      // share of its KV blocks in use
};

// Returns two candidates of equal size that are to become one for a request of so many blocks: the
// least loaded ones of the smallest size whose double holds the request, else of the largest size
// of which there are two. `blocks_of[k]` are the blocks of a group of 2^k replicas. Nothing if no
// two candidates can become one.
std::optional<std::vector<ReplicaId>> choose_scale_up(std::span<const ScaleCandidate> candidates,
                                                      std::int64_t blocks,
                                                      std::span<const std::int64_t> blocks_of);

// Returns the least loaded replicas that are to become one by layers for a request of so many
// blocks: the smallest power of two that suffices. `blocks_of` is as above. Nothing if there are
// too few that are alone.
std::optional<std::vector<ReplicaId>> choose_scale_layers(
    std::span<const ScaleCandidate> candidates, std::int64_t blocks,
    std::span<const std::int64_t> blocks_of);

// Returns two candidates that are to become one next so that the candidate with replica `at` grows:
// itself and the next run of equally many replicas, or if that run is not one candidate, two
// candidates of it. Candidates are aligned runs of a power of two of replicas. Nothing if there is
// no such run.
std::optional<std::vector<ReplicaId>> choose_neighbours(std::span<const ScaleCandidate> candidates,
                                                        ReplicaId at);

// Returns true if a group waits for its end: the policy formed it for long requests, and these have
// ended. It is not available for requests that others can serve.
bool is_closing(const ScaleCandidate& candidate);
// Returns true if a group that waits for its end has enough free KV to part: 50 % (section 3.3).
bool may_scale_down(const ScaleCandidate& candidate);

}  // namespace protean

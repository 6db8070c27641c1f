#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "contract/observation.h"
#include "engine/live_request.h"

namespace protean {

// How the router chooses a replica for a request.
enum class RouterPolicy : std::uint8_t {
  kFirstToken,   // least predicted time to the first token, prefix cache hits counted
  kFreeness,     // most KV blocks that are free or not awaited, for each request (Llumnix)
  kLeastLoaded,  // fewest requests running and waiting
  kRoundRobin,   // each replica in turn
};

std::string_view to_string(RouterPolicy policy);
// Reads the value of --router. Fails with an error that lists all values.
Result<RouterPolicy> parse_router(std::string_view name);

// A replica as the router sees it when a request arrives.
struct ReplicaView {
  Observation load;
  Prospect expected;  // used by kFirstToken only, except for the refusal
};

// Replicas in service, one of which gets the request that is being placed.
struct RouteCandidates {
  std::vector<ReplicaView> views;
  std::vector<std::size_t> replicas;  // one for each view
};

// Chooses a candidate and returns its index. Candidates that would refuse the request are chosen
// only if all would: then one whose refusal says that a later attempt may succeed is preferred.
// `turn` is the index of the candidate whose turn it is; it is chosen first among equals. Pure.
std::size_t choose_replica(RouterPolicy policy, std::span<const ReplicaView> candidates,
                           std::size_t turn);

// Returns Llumnix's freeness of a replica: its KV blocks, less those in use and those that waiting
// requests need, for each request. A replica without requests has more than any other.
double freeness(const Observation& load);

}  // namespace protean

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "contract/observation.h"
#include "fleet/router.h"

namespace protean {

// Whether requests that decode move, with their KV, from replicas that run short of KV to others.
enum class MigratePolicy : std::uint8_t {
  kOff,   // only if an operator asks for it
  kLoad,  // by freeness (Llumnix, OSDI 2024, section 4.4)
};

// How requests are divided among replicas: when they arrive, and while they decode.
struct Dispatch {
  RouterPolicy router = RouterPolicy::kFirstToken;
  MigratePolicy migrate = MigratePolicy::kOff;
};

std::string_view to_string(MigratePolicy policy);
// Reads the value of --migrate. Fails with an error that lists all values.
Result<MigratePolicy> parse_migrate(std::string_view name);

// A replica as the balancing policy sees it.
struct BalanceCandidate {
  double freeness = 0;     // see freeness()
  bool has_place = false;  // one more sequence finds a place in its steps
};

// Returns which candidate gives a request to which, as indices. A candidate that runs short of KV
// gives, another one with a place takes: the least free gives to the freest, the second least free
// to the second freest, and so on. A candidate runs short if it has less than 3 free blocks for
// each request, which is the default of Llumnix's released code. Pure.
std::vector<std::pair<std::size_t, std::size_t>> pair_by_freeness(
    std::span<const BalanceCandidate> candidates);

// Returns true if a request that uses so many blocks should move between two replicas of a pair:
// the taker still does not run short with it and stays at least as free as the giver. So a move
// never makes its taker a giver, and as long as loads do not change otherwise, no request comes
// back.
bool evens_out(const Observation& giver, const Observation& taker, std::int64_t blocks);

}  // namespace protean

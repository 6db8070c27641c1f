#include "fleet/router.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

constexpr std::array<std::pair<RouterPolicy, std::string_view>, 4> kNames{{
    {RouterPolicy::kFirstToken, "first-token"},
    {RouterPolicy::kFreeness, "freeness"},
    {RouterPolicy::kLeastLoaded, "least-loaded"},
    {RouterPolicy::kRoundRobin, "round-robin"},
}};

int requests(const Observation& load) {
  return load.running + load.waiting;
}

// The smaller, the better; compared in order.
using Rank = std::pair<double, double>;

std::int64_t tokens_until_first(const Prospect& expected) {
  return expected.before.tokens + expected.tokens;
}

// Returns the mean predicted time of a token until the first one, over the candidates that have
// measured steps. If none has, returns 1: ranks then compare numbers of tokens.
double mean_token_ns(std::span<const ReplicaView> candidates) {
  double sum = 0;
  int measured = 0;
  for (const ReplicaView& candidate : candidates) {
    const Prospect& expected = candidate.expected;
    if (expected.first_token_ns > 0) {
      sum += static_cast<double>(expected.first_token_ns) /
             static_cast<double>(tokens_until_first(expected));
      ++measured;
    }
  }
  return measured > 0 ? sum / measured : 1;
}

// A replica that has measured nothing yet is taken to be as fast as the others.
double first_token_ns(const Prospect& expected, double token_ns) {
  if (expected.first_token_ns > 0) {
    return static_cast<double>(expected.first_token_ns);
  }
  return token_ns * static_cast<double>(tokens_until_first(expected));
}

Rank rank_of(RouterPolicy policy, const ReplicaView& candidate, double token_ns) {
  const double load = requests(candidate.load);
  switch (policy) {
    case RouterPolicy::kFirstToken:
      return {first_token_ns(candidate.expected, token_ns), load};
    case RouterPolicy::kFreeness:
      return {-freeness(candidate.load), load};
    case RouterPolicy::kLeastLoaded:
      return {load, static_cast<double>(candidate.load.kv_blocks_used)};
    case RouterPolicy::kRoundRobin:
      return {0, 0};
  }
  check(false, "every policy ranks");
  return {};
}

// Returns 0 if the request is not refused. The higher, the less hope a later attempt has.
int hopelessness(const Prospect& expected) {
  if (!expected.refusal) {
    return 0;
  }
  switch (expected.refusal->code) {
    case ErrorCode::kExhausted:
      return 1;
    case ErrorCode::kUnavailable:
      return 2;
    default:
      return 3;
  }
}

}  // namespace

std::string_view to_string(RouterPolicy policy) {
  const auto found = std::find_if(kNames.begin(), kNames.end(),
                                  [&](const auto& row) { return row.first == policy; });
  check(found != kNames.end(), "every policy has a name");
  return found->second;
}

Result<RouterPolicy> parse_router(std::string_view name) {
  for (const auto& [policy, known] : kNames) {
    if (known == name) {
      return policy;
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "--router {}: use first-token, freeness, least-loaded or round-robin", name);
}

double freeness(const Observation& load) {
  const double blocks =
      static_cast<double>(load.kv_blocks - load.kv_blocks_used - load.kv_blocks_awaited);
  return requests(load) == 0 ? std::numeric_limits<double>::infinity() : blocks / requests(load);
}

std::size_t choose_replica(RouterPolicy policy, std::span<const ReplicaView> candidates,
                           std::size_t turn) {
  check(!candidates.empty(), "a fleet has a replica");
  const double token_ns = mean_token_ns(candidates);
  std::optional<std::size_t> best;
  std::pair<int, Rank> best_rank;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const std::size_t index = (turn + i) % candidates.size();
    const ReplicaView& candidate = candidates[index];
    const std::pair rank(hopelessness(candidate.expected), rank_of(policy, candidate, token_ns));
    if (!best || rank < best_rank) {
      best = index;
      best_rank = rank;
    }
  }
  return *best;
}

}  // namespace protean

#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace protean {

// How far a fingerprint is.
struct FingerprintProgress {
  int steps = 0;      // that were timed
  int of_steps = 0;   // that it times
  int discarded = 0;  // times during which requests came
};

// How measuring and loading in the background leave a serving machine's requests alone. An empty
// function means that nothing else computes.
struct Harvest {
  // Waits for a moment without requests, but under steady load not for long. Returns false if the
  // work is to end unfinished.
  std::function<bool()> await_turn;
  // Returns a number that grows when requests come; nothing while there are some.
  std::function<std::optional<std::uint64_t>()> quiet;
  // Told after each timed run; may be empty.
  std::function<void(const FingerprintProgress&)> told = {};
  // Returns false if the work is to end unfinished, without waiting.
  std::function<bool()> goes_on = {};

  bool is_over() const { return goes_on && !goes_on(); }
};

}  // namespace protean

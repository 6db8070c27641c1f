#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace protean {

// How measuring and loading in the background leave a serving machine's requests alone. An empty
// function means that nothing else computes.
struct Harvest {
  // Waits for a moment without requests, but under steady load not for long. Returns false if the
  // work is to end unfinished.
  std::function<bool()> await_turn;
  // Returns a number that grows when requests come; nothing while there are some.
  std::function<std::optional<std::uint64_t>()> quiet;
};

}  // namespace protean

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "loadtest/random.h"
#include "trace/trace.h"

namespace protean::loadtest {

struct SampledRequest {
  TimeNs at_ns = 0;
  const LengthWindow* lengths = nullptr;  // null if the trace states no lengths
};

// Draws the requests of many clients in order of time, one window at a time. A window gets as many
// requests as its rate states, with gaps drawn from its distribution and scaled to fill the window.
// The scales that traces state are not used: with heavy-tailed gaps they miss the rate by far.
class ClientSampler {
 public:
  // `clients` must outlive the sampler. Requests before `start_ns` are skipped.
  ClientSampler(const std::vector<ClientProcess>& clients, TimeNs start_ns, std::uint64_t seed);

  std::optional<SampledRequest> next();

 private:
  struct Client {
    const ClientProcess* process;
    Random random;
    std::size_t window = 0;        // index of the next window to draw
    std::vector<TimeNs> arrivals;  // rest of the drawn window, latest first
  };
  bool refill(Client& client);

  TimeNs start_ns_;
  std::vector<Client> clients_;
};

std::int64_t sample(const LengthHistogram& histogram, Random& random);

}  // namespace protean::loadtest

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "loadtest/random.h"
#include "trace/trace.h"

namespace protean::loadtest {

struct SampledRequest {
  TimeNs at_ns = 0;
  const LengthWindow* lengths = nullptr;  // null: the trace does not tell
};

// Draws the requests of many client processes, in order of time, a window at a time: a window gets
// the number of requests its rate says, and between them gaps of its distribution, stretched to
// fill it. (Fitted scales of heavy-tailed gaps miss the rate they were fitted to by far.)
class ClientSampler {
 public:
  // `clients` must outlive the sampler. Windows before `start_ns` are passed over.
  ClientSampler(const std::vector<ClientProcess>& clients, TimeNs start_ns, std::uint64_t seed);

  std::optional<SampledRequest> next();

 private:
  struct Client {
    const ClientProcess* process;
    Random random;
    std::size_t window = 0;        // the next to draw
    std::vector<TimeNs> arrivals;  // of the window before it, the last one first
  };
  bool refill(Client& client);

  TimeNs start_ns_;
  std::vector<Client> clients_;
};

std::int64_t sample(const LengthHistogram& histogram, Random& random);

}  // namespace protean::loadtest

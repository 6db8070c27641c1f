#include "loadtest/client_sampler.h"

#include <algorithm>
#include <cmath>

namespace protean::loadtest {
namespace {

double draw_gap(const RateWindow& window, Random& random) {
  return window.gaps == GapDistribution::kGamma ? random.gamma(window.shape_parameter)
                                                : random.weibull(window.shape_parameter);
}

// Returns the last length window that begins at or before `at_ns`, else the first one.
const LengthWindow* lengths_at(const ClientProcess& process, TimeNs at_ns) {
  const LengthWindow* found = process.lengths.empty() ? nullptr : &process.lengths.front();
  for (const LengthWindow& window : process.lengths) {
    if (window.at_ns <= at_ns) {
      found = &window;
    }
  }
  return found;
}

}  // namespace

ClientSampler::ClientSampler(const std::vector<ClientProcess>& clients, TimeNs start_ns,
                             std::uint64_t seed)
    : start_ns_(start_ns) {
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients_.push_back({.process = &clients[i], .random = Random(mix_seeds(seed, i))});
  }
}

// Draws windows until one has arrivals. Returns false at the end of the trace.
bool ClientSampler::refill(Client& client) {
  const std::vector<RateWindow>& windows = client.process->rates;
  while (client.arrivals.empty() && client.window < windows.size()) {
    const RateWindow& window = windows[client.window++];
    if (window.at_ns + window.duration_ns <= start_ns_) {
      continue;
    }
    const double seconds = static_cast<double>(window.duration_ns) / kNsPerS;
    const auto count =
        static_cast<std::size_t>(window.requests_per_s * seconds + client.random.uniform());
    std::vector<double> ends(count + 1);
    double sum = 0;
    for (double& end : ends) {
      sum += draw_gap(window, client.random);
      end = sum;
    }
    // One gap more than arrivals is drawn: the last one reaches from the last arrival to the end.
    for (std::size_t i = count; i > 0 && sum > 0; --i) {
      const TimeNs at_ns =
          window.at_ns +
          static_cast<TimeNs>(ends[i - 1] / sum * static_cast<double>(window.duration_ns));
      if (at_ns >= start_ns_) {
        client.arrivals.push_back(at_ns);
      }
    }
  }
  return !client.arrivals.empty();
}

std::optional<SampledRequest> ClientSampler::next() {
  Client* first = nullptr;
  for (Client& client : clients_) {
    if (refill(client) && (first == nullptr || client.arrivals.back() < first->arrivals.back())) {
      first = &client;
    }
  }
  if (first == nullptr) {
    return std::nullopt;
  }
  const TimeNs at_ns = first->arrivals.back();
  first->arrivals.pop_back();
  return SampledRequest{at_ns - start_ns_, lengths_at(*first->process, at_ns)};
}

std::int64_t sample(const LengthHistogram& histogram, Random& random) {
  const auto place = std::upper_bound(histogram.cumulative.begin(), histogram.cumulative.end() - 1,
                                      random.uniform());
  return histogram.lengths[static_cast<std::size_t>(place - histogram.cumulative.begin())];
}

}  // namespace protean::loadtest

// Tests that under overload, deadlines make more first tokens arrive in time.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sim/report_text_for_test.h"
#include "sim/simulation.h"

namespace protean {
namespace {

struct Attainment {
  double in_time = 0;   // share of all requests whose first token met the objective
  double of_begun = 0;  // the same share of requests that got a first token
  std::int64_t refused = 0;
  std::int64_t timed_out = 0;
};

Attainment attainment(const SimulationReport& report, std::size_t requests, TimeNs slo_ns) {
  Attainment found{.refused = report.refused};
  double in_time = 0;
  double begun = 0;
  for (const FinishedRequest& request : report.finished) {
    const RequestTimes& times = request.times;
    begun += times.first_token_ns >= 0 ? 1 : 0;
    in_time += times.first_token_ns >= 0 && times.first_token_ns - times.arrived_ns <= slo_ns;
    found.timed_out += request.reason == FinishReason::kTimeout ? 1 : 0;
  }
  found.in_time = in_time / static_cast<double>(requests);
  found.of_begun = in_time / begun;
  return found;
}

// Returns a trace with Poisson arrivals and the lengths of a chat.
std::vector<TraceRequest> poisson_trace(double per_s, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> gap_s(per_s);
  std::lognormal_distribution<double> prompt(5.5, 1.0);
  std::lognormal_distribution<double> output(4.0, 0.7);
  std::vector<TraceRequest> trace(count);
  double at_s = 0;
  for (TraceRequest& request : trace) {
    at_s += gap_s(random);
    request = {static_cast<TimeNs>(at_s * 1e9), 1 + static_cast<int>(prompt(random)),
               1 + static_cast<int>(output(random))};
  }
  return trace;
}

SimulationConfig chat_server(std::int64_t kv_blocks, int max_num_seqs) {
  return {.engine = {.scheduler = {.kv_blocks = kv_blocks,
                                   .block_tokens = 16,
                                   .max_num_seqs = max_num_seqs,
                                   .max_num_batched_tokens = 512,
                                   .max_model_len = 4096}},
          .step_cost = {.fixed_us = 20000, .token_us = 100, .context_token_us = 0.01}};
}

// Servers limited by compute, by KV and by places in a step, at about 0.5, 2 and 5 times the load
// that they can serve.
TEST(Slo, UnderOverloadDeadlinesBeatFirstComeFirstServed) {
  constexpr TimeNs kSlo = 2 * kNsPerS;
  constexpr std::size_t kRequests = 1500;
  for (const auto& [blocks, seqs] : {std::pair{8000, 128}, {600, 128}, {8000, 16}}) {
    for (const double per_s : {5.0, 15.0, 40.0}) {
      const auto trace = poisson_trace(per_s, kRequests, 7);
      SimulationConfig config = chat_server(blocks, seqs);
      const SimulationReport plain = simulate(config, trace);
      config.ttft_slo_ns = kSlo;
      const SimulationReport hurried = simulate(config, trace);
      const Attainment fcfs = attainment(plain, kRequests, kSlo);
      const Attainment slo = attainment(hurried, kRequests, kSlo);
      const std::string scene = fmt::format(
          "{} blocks, {} places, {}/s: in time {:.3f}, with deadlines {:.3f} ({:.3f} of those "
          "begun), {} refused, {} timed out",
          blocks, seqs, per_s, fcfs.in_time, slo.in_time, slo.of_begun, slo.refused, slo.timed_out);
      SCOPED_TRACE(scene);
      RecordProperty(fmt::format("scene_{}_{}_{}", blocks, seqs, static_cast<int>(per_s)), scene);
      EXPECT_EQ(hurried.finished.size() + static_cast<std::size_t>(hurried.refused), kRequests);
      EXPECT_GT(slo.of_begun, 0.8) << "most requests that begin meet their deadline";
      if (fcfs.in_time > 0.95) {
        EXPECT_GT(slo.in_time, fcfs.in_time - 0.01)
            << "without overload hardly any request is refused";
      } else {
        EXPECT_GT(slo.in_time, 2 * fcfs.in_time);
        EXPECT_GT(slo.in_time, 0.15);
      }
      if (per_s == 15) {
        EXPECT_EQ(to_csv(hurried), to_csv(simulate(config, trace)));
      }
    }
  }
}

}  // namespace
}  // namespace protean

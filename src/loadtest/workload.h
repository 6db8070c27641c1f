#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "loadtest/client_sampler.h"
#include "loadtest/random.h"
#include "trace/trace.h"

namespace protean::loadtest {

struct WorkloadOptions {
  // Requests a second; infinite: all are due at once, and --max-concurrency makes a closed loop.
  // Nothing: as the trace has them.
  std::optional<double> request_rate;
  double burstiness = 1;         // gamma shape of the gaps: 1 Poisson, less is burstier
  std::int64_t num_prompts = 0;  // 0 = no limit
  TimeNs duration_ns = 0;        // 0 = no limit
  TimeNs trace_start_ns = 0;
  double time_scale = 1;    // arrival times of a trace are multiplied by it
  double length_scale = 1;  // token counts of a trace likewise
  std::int64_t input_tokens = 1024;
  std::int64_t output_tokens = 128;
  double range_ratio = 0;             // lengths are uniform in [n (1 - r), n (1 + r)]
  std::int64_t max_input_tokens = 0;  // longer ones of a trace are cut; 0 = no limit
  std::int64_t max_output_tokens = 0;
  std::uint64_t seed = 0;
};

struct PlannedRequest {
  std::int64_t index = 0;
  TimeNs at_ns = 0;  // when it is due, from the start of the run
  std::int64_t input_tokens = 1;
  std::int64_t output_tokens = 1;
  std::span<const std::int64_t> prefix_blocks;  // views into the trace
  double block_tokens = 0;                      // of one prefix block, scaled like the lengths
};

// When to send what: a sequence that depends on nothing but the options, the trace and the seed.
// Arrivals and lengths are drawn from streams of their own, so that changing one leaves the other.
class Workload {
 public:
  // `trace` may be null and must outlive the workload.
  static Result<Workload> create(const WorkloadOptions& options, const Trace* trace);

  std::optional<PlannedRequest> next();
  std::int64_t total() const { return total_; }  // requests to come at most; 0 = not known
  // Returns an upper bound of the input tokens of every request to come.
  std::int64_t longest_input() const;

 private:
  Workload(const WorkloadOptions& options, const Trace* trace);
  struct LengthRange {
    std::int64_t low = 0;
    std::int64_t high = 0;
  };
  LengthRange range_of(std::int64_t mean) const;
  bool replays_arrivals() const { return !options_.request_rate.has_value(); }
  bool next_from_trace(PlannedRequest& planned);
  bool next_sampled(PlannedRequest& planned);
  void draw_arrival(PlannedRequest& planned);
  void draw_lengths(PlannedRequest& planned);
  void use(const TraceRequest& request, PlannedRequest& planned) const;
  std::int64_t scaled(std::int64_t tokens, std::int64_t limit) const;

  WorkloadOptions options_;
  const Trace* trace_;
  Random arrivals_;
  Random lengths_;
  std::optional<ClientSampler> sampler_;
  std::int64_t total_ = 0;
  std::int64_t index_ = 0;
  std::size_t row_ = 0;   // of the trace, the next
  double elapsed_s_ = 0;  // of drawn arrivals
};

}  // namespace protean::loadtest

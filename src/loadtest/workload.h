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
  // Requests per second. If infinite, all are due at once, and --max-concurrency makes a closed
  // loop. If empty, requests arrive as in the trace.
  std::optional<double> request_rate;
  double burstiness = 1;  // shape of the gamma-distributed gaps: 1 is Poisson, less is burstier
  std::int64_t num_prompts = 0;  // 0 = no limit
  TimeNs duration_ns = 0;        // 0 = no limit
  TimeNs trace_start_ns = 0;
  double time_scale = 1;    // factor of a trace's arrival times
  double length_scale = 1;  // factor of a trace's token counts
  std::int64_t input_tokens = 1024;
  std::int64_t output_tokens = 128;
  double range_ratio = 0;             // lengths are uniform in [n (1 - r), n (1 + r)]
  std::int64_t max_input_tokens = 0;  // longer inputs of a trace are cut; 0 = no limit
  std::int64_t max_output_tokens = 0;
  std::uint64_t seed = 0;
};

struct PlannedRequest {
  std::int64_t index = 0;
  TimeNs at_ns = 0;  // when the request is due, since the start of the run
  std::int64_t input_tokens = 1;
  std::int64_t output_tokens = 1;
  std::span<const std::int64_t> prefix_blocks;  // points into the trace
  double block_tokens = 0;                      // tokens of one prefix block, scaled like lengths
};

// The sequence of planned requests, which depends only on the options, the trace and the seed.
// Arrivals and lengths have separate random streams, so that a change of one keeps the other.
class Workload {
 public:
  // `trace` may be null and must outlive the workload.
  static Result<Workload> create(const WorkloadOptions& options, const Trace* trace);

  std::optional<PlannedRequest> next();
  std::int64_t total() const { return total_; }  // largest number of requests; 0 = not known
  // Returns the largest number of input tokens that a request can have.
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
  std::size_t row_ = 0;   // index of the trace's next request
  double elapsed_s_ = 0;  // time of the next drawn arrival
};

}  // namespace protean::loadtest

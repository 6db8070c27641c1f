#include "loadtest/workload.h"

#include <algorithm>
#include <cmath>

namespace protean::loadtest {
namespace {

constexpr std::uint64_t kArrivalStream = 1;
constexpr std::uint64_t kLengthStream = 2;
constexpr std::uint64_t kClientStream = 3;

Error wrong(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

Status check_options(const WorkloadOptions& options) {
  if (options.request_rate && !(*options.request_rate > 0)) {
    return wrong("--request-rate must be above 0, or inf to send all requests at once");
  }
  if (!(options.burstiness > 0)) {
    return wrong("--burstiness must be above 0: 1 is Poisson, less is burstier, more is steadier");
  }
  if (!(options.time_scale >= 0) || !(options.length_scale > 0) ||
      !std::isfinite(options.time_scale) || !std::isfinite(options.length_scale)) {
    return wrong("--time-scale must be 0 or more and --length-scale above 0");
  }
  if (!(options.range_ratio >= 0) || !(options.range_ratio < 1)) {
    return wrong("--random-range-ratio must be at least 0 and less than 1");
  }
  if (options.input_tokens < 1 || options.output_tokens < 1) {
    return wrong("--random-input-len and --random-output-len must be at least 1");
  }
  return {};
}

Status check_trace(const WorkloadOptions& options, const Trace* trace) {
  if (!options.request_rate && (trace == nullptr || !has_arrivals(*trace))) {
    return wrong(
        fmt::format("{}; set --request-rate (inf sends all at once, limited by --max-concurrency)",
                    trace == nullptr ? "there are no arrival times without --trace"
                                     : "the trace has no arrival times, only lengths"));
  }
  if (options.num_prompts == 0 && options.duration_ns == 0 && options.request_rate) {
    return wrong("the run has no end: set --num-prompts or --duration");
  }
  if (trace != nullptr && !trace->requests.empty() && !options.request_rate &&
      trace->requests.back().at_ns < options.trace_start_ns) {
    return wrong("--trace-start is after the end of the trace");
  }
  return {};
}

}  // namespace

Result<Workload> Workload::create(const WorkloadOptions& options, const Trace* trace) {
  if (Status checked = check_options(options); !checked.ok()) {
    return checked.error();
  }
  if (Status checked = check_trace(options, trace); !checked.ok()) {
    return checked.error();
  }
  return Workload(options, trace);
}

Workload::Workload(const WorkloadOptions& options, const Trace* trace)
    : options_(options),
      trace_(trace),
      arrivals_(mix_seeds(options.seed, kArrivalStream)),
      lengths_(mix_seeds(options.seed, kLengthStream)),
      total_(options.num_prompts) {
  if (trace_ == nullptr) {
    return;
  }
  if (!trace_->clients.empty()) {
    sampler_.emplace(trace_->clients, options.trace_start_ns,
                     mix_seeds(options.seed, kClientStream));
    return;
  }
  const auto& rows = trace_->requests;
  row_ = static_cast<std::size_t>(
      std::lower_bound(rows.begin(), rows.end(), options.trace_start_ns,
                       [](const TraceRequest& row, TimeNs at_ns) { return row.at_ns < at_ns; }) -
      rows.begin());
  if (!replays_arrivals()) {
    row_ = row_ == rows.size() ? 0 : row_;
  } else {
    const auto left = static_cast<std::int64_t>(rows.size() - row_);
    total_ = total_ == 0 ? left : std::min(total_, left);
  }
}

std::int64_t Workload::longest_input() const {
  if (trace_ == nullptr || !has_lengths(*trace_)) {
    return range_of(options_.input_tokens).high;
  }
  std::int64_t longest = 0;
  for (const TraceRequest& request : trace_->requests) {
    longest = std::max(longest, request.input_tokens);
  }
  for (const ClientProcess& client : trace_->clients) {
    for (const LengthWindow& window : client.lengths) {
      for (const std::int64_t length : window.input.lengths) {
        longest = std::max(longest, length);
      }
    }
  }
  return scaled(longest, options_.max_input_tokens);
}

std::optional<PlannedRequest> Workload::next() {
  if (options_.num_prompts > 0 && index_ >= options_.num_prompts) {
    return std::nullopt;
  }
  PlannedRequest planned{.index = index_};
  bool found = true;
  if (trace_ == nullptr) {
    draw_lengths(planned);
  } else if (sampler_) {
    found = next_sampled(planned);
  } else {
    found = next_from_trace(planned);
  }
  if (!found) {
    return std::nullopt;
  }
  if (!replays_arrivals()) {
    draw_arrival(planned);
  } else {
    planned.at_ns = static_cast<TimeNs>(static_cast<double>(planned.at_ns) * options_.time_scale);
  }
  if (options_.duration_ns > 0 && planned.at_ns >= options_.duration_ns) {
    return std::nullopt;
  }
  ++index_;
  return planned;
}

// Plans the next request of the trace. If arrivals are drawn, the trace repeats after its end.
bool Workload::next_from_trace(PlannedRequest& planned) {
  const auto& rows = trace_->requests;
  if (row_ == rows.size()) {
    if (replays_arrivals()) {
      return false;
    }
    row_ = 0;
  }
  use(rows[row_++], planned);
  planned.at_ns -= options_.trace_start_ns;
  return true;
}

bool Workload::next_sampled(PlannedRequest& planned) {
  const auto drawn = sampler_->next();
  if (!drawn) {
    return false;
  }
  planned.at_ns = drawn->at_ns;
  if (drawn->lengths == nullptr) {
    draw_lengths(planned);
    return true;
  }
  planned.input_tokens = scaled(sample(drawn->lengths->input, lengths_), options_.max_input_tokens);
  planned.output_tokens =
      scaled(sample(drawn->lengths->output, lengths_), options_.max_output_tokens);
  return true;
}

void Workload::draw_arrival(PlannedRequest& planned) {
  if (!std::isfinite(*options_.request_rate)) {
    planned.at_ns = 0;
    return;
  }
  planned.at_ns = static_cast<TimeNs>(elapsed_s_ * kNsPerS);
  const double mean_s = 1 / *options_.request_rate;
  // The limit keeps the time within 64 bits of nanoseconds.
  elapsed_s_ = std::min(
      elapsed_s_ + arrivals_.gamma(options_.burstiness) / options_.burstiness * mean_s, 1e9);
}

void Workload::draw_lengths(PlannedRequest& planned) {
  const auto draw = [&](std::int64_t mean) {
    const auto [low, high] = range_of(mean);
    return std::max<std::int64_t>(1, lengths_.integer(low, high));
  };
  planned.input_tokens = draw(options_.input_tokens);
  planned.output_tokens = draw(options_.output_tokens);
}

Workload::LengthRange Workload::range_of(std::int64_t mean) const {
  const auto tokens = static_cast<double>(mean);
  return {static_cast<std::int64_t>(std::floor(tokens * (1 - options_.range_ratio))),
          static_cast<std::int64_t>(std::ceil(tokens * (1 + options_.range_ratio)))};
}

void Workload::use(const TraceRequest& request, PlannedRequest& planned) const {
  planned.at_ns = request.at_ns;
  planned.input_tokens = scaled(request.input_tokens, options_.max_input_tokens);
  planned.output_tokens = scaled(request.output_tokens, options_.max_output_tokens);
  planned.prefix_blocks = request.prefix_blocks;
  planned.block_tokens = static_cast<double>(kMooncakeBlockTokens) * options_.length_scale;
}

std::int64_t Workload::scaled(std::int64_t tokens, std::int64_t limit) const {
  const auto count =
      std::max<std::int64_t>(1, std::llround(static_cast<double>(tokens) * options_.length_scale));
  return limit > 0 ? std::min(count, limit) : count;
}

}  // namespace protean::loadtest

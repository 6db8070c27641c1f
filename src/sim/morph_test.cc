// Forms that change in the production engine, in virtual time.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>

#include "base/test_data.h"
#include "control/scene_for_test.h"
#include "sim/simulation.h"

namespace protean {
namespace {

SimulationConfig elastic_config(const PolicyOptions& options, double kv_share = 0.4) {
  const FormBounds bounds = bounds_for_test(16, kv_share);
  const MorphConfig morph{.policy = options, .bounds = bounds, .start = bounds.full};
  return {.engine = {.scheduler = {.kv_blocks = bounds.full.kv.blocks,
                                   .largest_kv_blocks =
                                       form_path(bounds, Precision::kW4).back().kv.blocks,
                                   .block_tokens = 16,
                                   .max_num_seqs = 64,
                                   .max_num_batched_tokens = 512,
                                   .max_model_len = 8192},
                     .morph = morph},
          .step_cost = {.fixed_us = 1000, .token_us = 50},
          .seed = 1,
          .morph_cost = {.weight_bytes_per_us = 30000, .copy_bytes_per_us = 500}};
}

SimulationConfig fixed(SimulationConfig config) {
  config.engine.morph->mode = MorphMode::kOff;
  return config;
}

struct Outcome {
  double ttft_p95_s = 0;
  int lowerings = 0;  // times that halves were lowered after none or after being raised
  std::int64_t swaps = 0;
  std::int64_t most_blocks = 0;
  double full_share = 0;  // of output tokens
  TimeNs back_ns = -1;    // when full precision was reached for the last time
  bool back = true;
};

Outcome outcome(const SimulationReport& report) {
  Outcome found;
  std::vector<double> ttft_s;
  for (const RequestRecord& record : report.finished) {
    ttft_s.push_back(static_cast<double>(record.times.first_token_ns - record.times.arrived_ns) /
                     kNsPerS);
  }
  std::sort(ttft_s.begin(), ttft_s.end());
  found.ttft_p95_s = ttft_s.empty() ? 0 : ttft_s[ttft_s.size() * 95 / 100];
  std::int64_t down = 0;
  std::int64_t up = 0;
  bool going_down = false;
  for (const auto& [at_ns, status] : report.forms) {
    if (status->swaps_down_total > down && !going_down) {
      ++found.lowerings;
      going_down = true;
    } else if (status->swaps_up_total > up) {
      going_down = false;
    }
    down = status->swaps_down_total;
    up = status->swaps_up_total;
    found.most_blocks = std::max(found.most_blocks, status->form.kv.blocks);
    const bool full =
        status->form.layer_precision == report.forms.front().status->form.layer_precision;
    if (full && !found.back) {
      found.back_ns = at_ns;
    }
    found.back = full;
  }
  found.swaps = down + up;
  double all = 0;
  for (const TokensAt& tokens : report.forms.back().status->output_tokens) {
    all += static_cast<double>(tokens.tokens);
    found.full_share += tokens.precision == "bf16:16" ? static_cast<double>(tokens.tokens) : 0.0;
  }
  found.full_share /= std::max(all, 1.0);
  return found;
}

std::vector<TraceRequest> square_wave(double period_s, double high, int periods) {
  std::mt19937 random(static_cast<unsigned>(period_s * high));
  const auto uniform = [&] { return (static_cast<double>(random()) + 0.5) / 4294967296.0; };
  std::vector<TraceRequest> trace;
  constexpr double kMost = 100;  // thinned
  for (double at_s = 0; at_s < period_s * periods;) {
    at_s -= std::log(uniform()) / kMost;
    if (uniform() * kMost < (std::fmod(at_s, period_s) < period_s / 2 ? high : 2)) {
      trace.push_back({static_cast<TimeNs>(at_s * kNsPerS), 64 + static_cast<int>(uniform() * 384),
                       32 + static_cast<int>(uniform() * 192)});
    }
  }
  return trace;
}

TEST(ElasticSimulation, Explore) {
  for (const double period_s : {1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0}) {
    for (const double high : {24.0, 36.0}) {
      const int periods = std::max(2, static_cast<int>(60 / period_s));
      const auto trace = square_wave(period_s, high, periods);
      const SimulationConfig own = elastic_config(options_for(MorphMode::kBalanced));
      SimulationConfig paper = own;
      paper.engine.morph->policy.rule = MorphRule::kPaper;
      std::printf("period %g high %g x %d:", period_s, high, periods);
      for (const SimulationConfig& config : {fixed(own), own, paper}) {
        const auto report = simulate(config, trace);
        const Outcome found = outcome(report);
        std::printf(" | ttft %.2f low %d swaps %ld blocks %ld full %.2f back %d %.1f fail %ld",
                    found.ttft_p95_s, found.lowerings, found.swaps, found.most_blocks,
                    found.full_share, found.back, static_cast<double>(found.back_ns) / 1e9,
                    report.forms.back().status->failures_total);
      }
      std::printf("\n");
    }
  }
}

std::vector<TraceRequest> piece_of(const std::string& file, TimeNs from_ns, double faster) {
  std::ostringstream text;
  text << std::ifstream(test_data(file)).rdbuf();
  std::vector<TraceRequest> piece;
  const auto trace = parse_azure_trace(text.view());
  for (TraceRequest request : trace.value()) {
    if (request.at_ns >= from_ns && request.at_ns < from_ns + 72 * kNsPerS) {
      request.at_ns = static_cast<TimeNs>(static_cast<double>(request.at_ns - from_ns) / faster);
      piece.push_back(request);
    }
  }
  return piece;
}

TEST(ElasticSimulation, ExploreTraces) {
  for (const char* name : {"conv", "code"}) {
    const std::string file = fmt::format("traces/azure2023/AzureLLMInferenceTrace_{}.csv", name);
    PROTEAN_REQUIRE_DATA(test_data(file));
    for (const int minute : {5, 20}) {
      for (const double faster : {1.0, 2.0, 3.0}) {
        const auto trace = piece_of(file, minute * 60 * kNsPerS, faster);
        std::printf("%s min %d x%g, %zu requests in %.0f s:", name, minute, faster, trace.size(),
                    72 / faster);
        for (const MorphMode mode : {MorphMode::kOff, MorphMode::kAccuracy, MorphMode::kBalanced,
                                     MorphMode::kPerformance}) {
          SimulationConfig config = elastic_config(options_for(mode), 0.75);
          config.engine.morph->mode = mode;
          const Outcome found = outcome(simulate(config, trace));
          std::printf(" | ttft %.2f low %d swaps %ld blocks %ld full %.2f", found.ttft_p95_s,
                      found.lowerings, found.swaps, found.most_blocks, found.full_share);
        }
        std::printf("\n");
      }
    }
  }
}

}  // namespace
}  // namespace protean

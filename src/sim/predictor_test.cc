// Compares what the predictor says of a load with what becomes of it in simulation.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sim/elastic_scene_for_test.h"

namespace protean {
namespace {

// A load on a replica whose form does not change.
struct RandomLoad {
  Scene scene;
  double of_capacity = 0;
  int prompt = 0;  // tokens, in the mean
  int answer = 0;
};

RandomLoad random_load(std::mt19937& random) {
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, static_cast<double>(random()) / 4294967296.0);
  };
  return {.scene = {.speed = random() % 2 == 0 ? Speed::kReading : Speed::kVnni,
                    .kv_share = between(0.2, 0.6),
                    .token_us = between(300, 1000),
                    .most_sequences = static_cast<int>(between(8, 64))},
          .of_capacity = between(0.6, 1.4),
          .prompt = static_cast<int>(between(100, 600)),
          .answer = static_cast<int>(between(16, 160))};
}

// Returns the requests that full precision carries in a second.
double capacity(const RandomLoad& load, const SimulationConfig& config) {
  const FormBounds& bounds = config.engine.morph->bounds;
  const Load means{.arrivals = {.prompt_tokens = static_cast<double>(load.prompt)},
                   .answer_tokens = static_cast<double>(load.answer),
                   .running_prompt_tokens = static_cast<double>(load.prompt),
                   .running_drawn_tokens = load.answer / 2.0};
  return capacity_of(
             {config.step_cost, load.scene.step_tokens},
             {.most_sequences = load.scene.most_sequences},
             {step_precision(bounds.spec, bounds.full), static_cast<double>(bounds.full.kv.blocks)},
             means)
      .per_s;
}

constexpr double kAtS = 70;  // the rate of arrivals is known by then to last for the horizon

// Lengths vary by half of their mean, like those of a chat.
std::vector<TraceRequest> trace_of(const RandomLoad& load, double per_s, unsigned seed) {
  auto trace = arrivals([=](double) { return per_s; }, kAtS + kHorizonS + 5, seed);
  std::mt19937 random(seed);
  const auto varied = [&](int mean) {
    return 1 + mean / 2 + static_cast<int>(random() % static_cast<unsigned>(mean));
  };
  for (TraceRequest& request : trace) {
    request.input_tokens = varied(load.prompt);
    request.output_tokens = varied(load.answer);
  }
  return trace;
}

struct Late {
  double predicted = 0;
  double seen = 0;
};

// Returns the late requests of the horizon: those that waited at its begin, and those that arrive
// in it.
Late late_of(const RandomLoad& load, unsigned seed) {
  SimulationConfig config = config_of(load.scene);
  config.engine.morph->bounds.ladder = {Precision::kBf16};
  const auto trace = trace_of(load, load.of_capacity * capacity(load, config), seed);
  const SimulationReport report = simulate(config, trace);
  const auto at = std::find_if(report.forms.begin(), report.forms.end(), [](const FormAt& form) {
    return form.at_ns >= kAtS * kNsPerS && !form.status->predictions.empty();
  });
  Late late;
  if (at == report.forms.end()) {
    ADD_FAILURE() << "nothing was predicted";
    return late;
  }
  late.predicted = at->status->predictions.front().late;
  const TimeNs end_ns = at->at_ns + static_cast<TimeNs>(kHorizonS * kNsPerS);
  for (const FinishedRequest& request : report.finished) {
    const RequestTimes& times = request.times;
    late.seen += times.first_token_ns > at->at_ns && times.arrived_ns < end_ns &&
                         times.first_token_ns - times.arrived_ns > 2 * kNsPerS
                     ? 1
                     : 0;
  }
  return late;
}

// The mean over several runs of a load may be off by what chance explains: three standard errors.
// Returns how many late requests were seen.
double expect_late_as_predicted(const RandomLoad& load, unsigned number) {
  constexpr unsigned kRuns = 6;
  Late mean;
  double squares = 0;
  for (unsigned run = 0; run < kRuns; ++run) {
    const Late late = late_of(load, 100 * number + run);
    mean.predicted += late.predicted / kRuns;
    mean.seen += late.seen / kRuns;
    squares += std::pow(late.predicted - late.seen, 2) / kRuns;
  }
  const double off = mean.predicted - mean.seen;
  const double error = std::sqrt((squares - off * off) / (kRuns - 1));
  EXPECT_LT(std::abs(off), std::max({2.0, 0.2 * mean.seen, 3 * error}))
      << fmt::format("load {}, {:.2f} of the capacity: {:.1f} late predicted, {:.1f} seen", number,
                     load.of_capacity, mean.predicted, mean.seen);
  return mean.seen;
}

TEST(Predictor, SaysHowManyRequestsOfALoadWillBeLate) {
  std::mt19937 random(5);
  double seen = 0;
  for (unsigned i = 0; i < 10; ++i) {
    seen += expect_late_as_predicted(random_load(random), i);
  }
  EXPECT_GT(seen, 500) << "some loads are late";
}

// Prompts take several steps, and most of their time is attention to their earlier chunks.
TEST(Predictor, KnowsThatLongPromptsAttendToTheirEarlierChunks) {
  double seen = 0;
  for (const double of_capacity : {0.5, 0.8, 1.1}) {
    const RandomLoad load{
        .scene = {.kv_share = 0.6, .token_us = 200, .attention = 16, .step_tokens = 128},
        .of_capacity = of_capacity,
        .prompt = 1000,
        .answer = 16};
    seen += expect_late_as_predicted(load, static_cast<unsigned>(100 * of_capacity));
  }
  EXPECT_GT(seen, 10) << "some loads are late";
}

}  // namespace
}  // namespace protean

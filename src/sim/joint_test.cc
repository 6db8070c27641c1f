// Tests the joint policies in virtual time: what a fleet does is what is predicted to cost least.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "control/form_path.h"
#include "cost/group_cost.h"
#include "cost/pages.h"
#include "fleet/token_kv_for_test.h"
#include "sim/simulation.h"

namespace protean {
namespace {

struct JointScene {
  int replicas = 2;
  int tensor = 1;            // devices of a replica, which share its layers
  std::int64_t blocks = 40;  // of each replica: 160 tokens
  ScalePolicy scale = ScalePolicy::kJoint;
  DropPolicy drop = DropPolicy::kJoint;
  double nats = -1;       // that a token loses at bf16; negative: precision stays
  double bf16_times = 1;  // the time of layers at bf16, as a share of that at f32
  double sum_us = 5;      // of a sum among devices that share layers
};

// Half of a device's memory is weights, half KV, and steps take what reading the weights takes.
ModelSpec joint_spec() {
  ModelSpec spec = group_spec();
  spec.layers = 8;
  return spec;
}

EngineConfig joint_engine(const JointScene& scene, const Form& of, const PageBudget& budget,
                          const GroupCost& cost) {
  const auto stages = static_cast<int>(stages_of(of).size());
  MorphConfig morph{.mode = MorphMode::kOff, .start = of};
  morph.bounds = {.spec = joint_spec(), .budget = budget, .full = of};
  morph.bounds.ladder = {Precision::kF32};
  if (scene.nats >= 0) {
    morph.mode = MorphMode::kBalanced;
    morph.policy = options_for(MorphMode::kBalanced);
    morph.policy.loss.layers[index_of(Precision::kBf16)] = scene.nats;
    morph.bounds.ladder.push_back(Precision::kBf16);
  }
  const std::int64_t most = kv_blocks_that_fit(morph.bounds, of);
  morph.bounds.full.kv.blocks = std::max(of.kv.blocks, most);
  return {
      .scheduler = {.kv_blocks = of.kv.blocks,
                    .largest_kv_blocks = std::max(most, form_path(morph.bounds).back().kv.blocks),
                    .block_tokens = kGroupBlockTokens,
                    .max_num_seqs = 32,
                    .max_num_batched_tokens = 128,
                    .max_model_len = 2000,
                    .steps_in_flight = stages},
      .max_in_flight = stages,
      .morph = morph,
      .step_cost = cost_of(cost, joint_spec(), of),
      .step_precision = step_precision(joint_spec(), of)};
}

SimulationConfig joint_config(const JointScene& scene) {
  Form form = single_device_form(
      joint_spec(), Precision::kF32, DeviceId{0},
      {.precision = KvPrecision::kF32, .block_tokens = kGroupBlockTokens, .blocks = scene.blocks});
  form.shards = 4;
  form.group = {whole_model(joint_spec().layers, form.shards, DeviceId{0})};
  const std::array devices = {DeviceId{0}, DeviceId{1}};
  form = divide(form, even_division(joint_spec().layers, scene.tensor, 1),
                std::span(devices).first(static_cast<std::size_t>(scene.tensor)));
  PageBudget budget{.page_bytes = 4096};
  budget.pages = form_pages(joint_spec(), form, budget.page_bytes);
  StepCost alone{.fixed_us = 100, .context_token_us = 0.1};
  alone.of(Precision::kF32) = {.step_us = 2000, .token_us = 20, .more_token_us = 20};
  alone.of(Precision::kBf16) = {.step_us = 2000 * scene.bf16_times,
                                .token_us = 20 * scene.bf16_times,
                                .more_token_us = 20 * scene.bf16_times};
  const std::vector<Precision> layers = {Precision::kF32, Precision::kBf16};
  GroupCost cost =
      group_cost(alone, joint_spec(), layers, {.us = scene.sum_us, .bytes_per_us = 1000});
  cost.rows = cost.exchange = {.us = 5, .bytes_per_us = 1000};
  SimulationConfig config{.engine = joint_engine(scene, form, budget, cost),
                          .replicas = scene.replicas,
                          .dispatch = {RouterPolicy::kLeastLoaded},
                          .step_cost = alone,
                          .seed = 5,
                          .morph_cost = {.copy_bytes_per_us = 100, .fetch_bytes_per_us = 100}};
  config.group_cost = cost;
  config.groups = GroupConfig{
      .spec = joint_spec(),
      .budget = budget,
      .form = form,
      .wide_engine = [=](const Form& wide) { return joint_engine(scene, wide, budget, cost); },
      .steps_at_once = 2,
      .scale = scene.scale,
      .drop = scene.drop};
  return config;
}

// Arrivals at a rate from `from_s` to `to_s`, of requests of equal lengths.
void add(std::vector<TraceRequest>& trace, double from_s, double to_s, double per_s,
         const TraceRequest& lengths) {
  std::mt19937 random(static_cast<unsigned>(trace.size()));
  double at_s = from_s;
  for (;;) {
    at_s -= std::log((static_cast<double>(random()) + 0.5) / 4294967296.0) / per_s;
    if (at_s >= to_s) {
      break;
    }
    trace.push_back(lengths);
    trace.back().at_ns = static_cast<TimeNs>(at_s * kNsPerS);
  }
  std::sort(trace.begin(), trace.end(),
            [](const TraceRequest& a, const TraceRequest& b) { return a.at_ns < b.at_ns; });
}

// A quiet load, a burst in the middle that `per_s` requests a second make, and a quiet load.
std::vector<TraceRequest> burst(double per_s, const TraceRequest& lengths) {
  std::vector<TraceRequest> trace;
  add(trace, 0, 60, 5, lengths);
  add(trace, 20, 35, per_s, lengths);
  return trace;
}

std::int64_t lowered(const SimulationReport& report) {
  std::int64_t swaps = 0;
  for (const FormAt& form : report.forms) {
    swaps = std::max(swaps, form.status->swaps_down_total);
  }
  return swaps;
}

std::int64_t late(const SimulationReport& report) {
  return std::count_if(
      report.finished.begin(), report.finished.end(), [](const FinishedRequest& request) {
        return request.times.first_token_ns - request.times.arrived_ns > 2 * kNsPerS;
      });
}

void expect_all_served(const SimulationReport& report, const std::vector<TraceRequest>& trace,
                       std::size_t replicas = 2) {
  EXPECT_EQ(report.finished.size(), trace.size());
  for (const FinishedRequest& request : report.finished) {
    EXPECT_EQ(request.reason, FinishReason::kLength) << "request " << request.request;
  }
  EXPECT_EQ(report.groups->failures_total, 0);
  EXPECT_EQ(report.groups->groups.size(), replicas) << "in the end all are alone";
}

constexpr TraceRequest kShort{0, 20, 40};

// More arrive than two replicas have KV for, and precision stays: layers are dropped, once, and
// fetched back once the burst is over.
TEST(Joint, DroppingWinsIfPrecisionStays) {
  const SimulationConfig config = joint_config({.sum_us = 2000});
  const auto trace = burst(120, kShort);
  const SimulationReport report = simulate(config, trace);
  expect_all_served(report, trace);
  ASSERT_EQ(report.groups->together_total, 1);
  EXPECT_EQ(report.changes.front().by, GroupBy::kLayers);
  SimulationConfig off = config;
  off.groups->drop = DropPolicy::kOff;
  off.groups->scale = ScalePolicy::kOff;
  EXPECT_LT(2 * late(report), late(simulate(off, trace)));
}

// More arrive than two replicas compute. A lower precision is faster and loses next to nothing.
TEST(Joint, LoweringPrecisionWinsIfItIsFasterAndLosesLittle) {
  const auto trace = burst(900, kShort);
  const SimulationReport report = simulate(
      joint_config({.blocks = 400, .nats = 0.0001, .bf16_times = 0.5, .sum_us = 2000}), trace);
  expect_all_served(report, trace);
  EXPECT_EQ(report.groups->together_total, 0);
  EXPECT_GT(lowered(report), 0);
}

// More arrive than two replicas have KV for. A lower precision loses much, and a group nothing.
TEST(Joint, DroppingWinsIfALowerPrecisionLosesMuch) {
  const auto trace = burst(120, kShort);
  const SimulationReport report = simulate(joint_config({.nats = 0.5, .sum_us = 2000}), trace);
  expect_all_served(report, trace);
  EXPECT_GT(report.groups->together_total, 0);
  EXPECT_EQ(lowered(report), 0);
}

// A request needs more KV than a replica has at full precision, and as much as it has at bf16.
std::vector<TraceRequest> with_long_ones(double every_s) {
  std::vector<TraceRequest> trace;
  add(trace, 0, 60, 5, kShort);
  for (double at_s = 5; at_s < 50; at_s += every_s) {
    trace.push_back({static_cast<TimeNs>(at_s * kNsPerS), 190, 20});
  }
  std::sort(trace.begin(), trace.end(),
            [](const TraceRequest& a, const TraceRequest& b) { return a.at_ns < b.at_ns; });
  return trace;
}

TEST(Joint, AWiderReplicaWinsForALongRequestIfALowerPrecisionLosesMuch) {
  const auto trace = with_long_ones(100);
  const SimulationReport report =
      simulate(joint_config({.drop = DropPolicy::kOff, .nats = 0.5}), trace);
  expect_all_served(report, trace);
  ASSERT_EQ(report.groups->together_total, 1);
  EXPECT_EQ(report.changes.front().by, GroupBy::kShards);
  EXPECT_EQ(lowered(report), 0);
}

// A group whose devices lose much time over their sums is worse.
TEST(Joint, LoweringPrecisionWinsForALongRequestIfItLosesLittle) {
  const auto trace = with_long_ones(100);
  const SimulationReport report = simulate(
      joint_config(
          {.drop = DropPolicy::kOff, .nats = 0.00001, .bf16_times = 0.5, .sum_us = 20'000}),
      trace);
  expect_all_served(report, trace);
  EXPECT_EQ(report.groups->together_total, 0);
  EXPECT_GT(lowered(report), 0);
}

// A group that serves all as well stays, because the next long request would wait for another.
TEST(Joint, AGroupStaysWhileLongRequestsComeAgainAndAgain) {
  const auto trace = with_long_ones(10);
  const SimulationReport report = simulate(joint_config({.drop = DropPolicy::kOff}), trace);
  expect_all_served(report, trace);
  EXPECT_EQ(report.groups->together_total, 1);
  EXPECT_EQ(report.groups->apart_total, 1);
}

// A few requests too many at once, which are served before they are late: nothing changes.
TEST(Joint, WaitingWinsIfTheQueueIsServedInTime) {
  std::vector<TraceRequest> trace;
  add(trace, 0, 40, 5, kShort);
  for (int i = 0; i < 30; ++i) {
    trace.push_back({20 * kNsPerS, 20, 40});
  }
  std::sort(trace.begin(), trace.end(),
            [](const TraceRequest& a, const TraceRequest& b) { return a.at_ns < b.at_ns; });
  const SimulationReport report = simulate(joint_config({.nats = 0.5, .bf16_times = 0.5}), trace);
  expect_all_served(report, trace);
  EXPECT_EQ(report.groups->together_total, 0);
  EXPECT_EQ(lowered(report), 0);
  EXPECT_EQ(late(report), 0);
}

// A load that two replicas carry, with all its chance: nothing changes.
TEST(Joint, NothingChangesUnderALoadThatReplicasCarry) {
  std::vector<TraceRequest> trace;
  add(trace, 0, 90, 30, kShort);
  const SimulationReport report = simulate(joint_config({.nats = 0.02}), trace);
  expect_all_served(report, trace);
  EXPECT_EQ(report.groups->together_total, 0);
  EXPECT_EQ(lowered(report), 0);
}

// Two pairs carry the load. A request that only all four can hold makes one group of the pairs.
TEST(Joint, FourReplicasJoinAsFarAsTheLoadNeeds) {
  const SimulationConfig config = joint_config({.replicas = 4, .drop = DropPolicy::kOff});
  auto trace = burst(260, kShort);
  const SimulationReport pairs = simulate(config, trace);
  expect_all_served(pairs, trace, 4);
  EXPECT_EQ(pairs.groups->together_total, 2);
  EXPECT_EQ(pairs.groups->apart_total, 2);
  trace.push_back({60 * kNsPerS, 700, 20});
  const SimulationReport all = simulate(config, trace);
  expect_all_served(all, trace, 4);
  EXPECT_GE(all.groups->together_total, 3);
  EXPECT_EQ(all.groups->together_total, all.groups->apart_total);
}

// Replicas of two devices each know what steps cost on two, and predict four from that.
TEST(Joint, ReplicasOfTwoDevicesBecomeAGroupOfFour) {
  const auto trace = burst(150, kShort);
  const SimulationReport report =
      simulate(joint_config({.tensor = 2, .drop = DropPolicy::kOff}), trace);
  expect_all_served(report, trace);
  EXPECT_EQ(report.groups->together_total, 1);
  EXPECT_EQ(report.groups->apart_total, 1);
}

// A load that only a group carries: it forms once and stays.
TEST(Joint, AGroupThatTheLoadNeedsStays) {
  std::vector<TraceRequest> trace;
  add(trace, 0, 120, 110, kShort);
  const SimulationReport report = simulate(joint_config({.sum_us = 2000}), trace);
  expect_all_served(report, trace);
  EXPECT_EQ(report.groups->together_total, 1);
}

}  // namespace
}  // namespace protean

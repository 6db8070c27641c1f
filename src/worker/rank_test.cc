// Devices of a pipeline, each on a thread of its own.

#include "worker/rank.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "model/synthetic_checkpoint.h"
#include "worker/fabric.h"

namespace protean {
namespace {

ModelSpec stage_spec() {
  ModelSpec spec;
  spec.architecture = "test";
  spec.layers = 2;
  spec.hidden = 64;
  spec.ffn = 96;
  spec.vocab = 70;
  spec.max_context = 64;
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  return spec;
}

StepPlan one_prompt() {
  StepPlan plan{.id = StepId{1}, .tokens = {3, 1, 4}, .blocks = {0}};
  plan.slices.push_back({.token_count = 3, .block_count = 1, .sample = 0});
  plan.samples.push_back({.params = {.temperature = 0}, .position = 3});
  return plan;
}

// A rest of the background work would take an hour. It ends because the second stage waits for the
// rows of the first one, which has not begun.
TEST(Rank, BackgroundWorkDoesNotRestWhileAStageWaitsForRows) {
  const ModelSpec spec = stage_spec();
  const SyntheticCheckpoint checkpoint(spec);
  const Form form = divide(
      single_device_form(spec, Precision::kBf16, DeviceId{0}, {.block_tokens = 4, .blocks = 8}),
      even_division(spec.layers, 1, 2), std::vector{DeviceId{0}, DeviceId{1}});
  const WorkerOptions options{
      .form = form, .devices = {{}, {}}, .max_step_tokens = 16, .max_positions = 64};
  const std::unique_ptr<Fabric> fabric = *Fabric::create(
      {.devices = 2, .rows = 16, .hidden = spec.hidden, .steps_in_flight = 2, .spins = true});
  std::vector<std::unique_ptr<Rank>> stages;
  for (int device = 0; device < 2; ++device) {
    stages.push_back(*Rank::create(options, checkpoint, {}, {}, {device, fabric.get(), device}));
  }
  PacedThread background(1e-6);
  stages[1]->set_background(background);
  const std::vector<StepPlan> plans = {one_prompt()};
  std::vector<HomeResult> results;
  std::thread last([&] {
    background.step_begins();
    results = stages[1]->run(1, plans);
    background.step_ends();
  });
  std::promise<void> done;
  background.post([&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(4);
    while (std::chrono::steady_clock::now() < until) {
    }
    (void)background.may_go_on();
    done.set_value();
  });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  EXPECT_TRUE(stages[0]->run(1, plans).empty());
  last.join();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results.front().result.sampled.size(), 1U);
}

}  // namespace
}  // namespace protean

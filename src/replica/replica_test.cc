// Tests a fleet of real workers: what its replicas answer, and requests that move between them.

#include "replica/replica.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "replica/load_scene_for_test.h"

namespace protean {
namespace {

TEST_F(ReplicasTest, TwoReplicasAnswerAsOne) {
  FleetLoad one(options_for({}), *this);
  one.run(40, 32);
  for (const RouterPolicy router : {RouterPolicy::kFirstToken, RouterPolicy::kRoundRobin}) {
    ReplicaOptions options = options_for({.replicas = 2});
    options.router = router;
    FleetLoad two(options, *this);
    two.run(40, 32);
    expect_same(two.answers, one.answers);
    EXPECT_GT(two.observed.at(ReplicaId{0}).accepted_total, 5);
    EXPECT_GT(two.observed.at(ReplicaId{1}).accepted_total, 5);
  }
}

TEST_F(ReplicasTest, LoadingTellsTheShareOfEachDevice) {
  const auto checkpoint = open_checkpoint(directory.path());
  ASSERT_TRUE(checkpoint.ok());
  std::vector<double> shares;
  const LoadHooks hooks{.told = [&](std::int64_t done, std::int64_t total) {
    shares.push_back(static_cast<double>(done) / static_cast<double>(total));
  }};
  ASSERT_TRUE(load_workers(options_for({.replicas = 2}), {**checkpoint, hooks}).ok());
  ASSERT_EQ(shares.size(), 4U) << "two layers on two devices";
  for (const std::size_t device : {0, 1}) {
    EXPECT_GT(shares[2 * device], 0);
    EXPECT_LT(shares[2 * device], shares[2 * device + 1]);
    EXPECT_EQ(shares[2 * device + 1], 1);
  }
}

TEST_F(ReplicasTest, WeightsThatCouldNotBeKeptOnDiskAreKeptByTheNextLoad) {
  ReplicaOptions options = groupable(1);
  options.variants =
      VariantStore::open(
          {open_checkpoint(directory.path()).value(), directory.path()}, {},
          {.directory = variants.path(), .precisions = {Precision::kBf16}, .shards = most_tensor})
          .value();
  const auto checkpoint = open_checkpoint(directory.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto packed_by_a_load = [&] {
    const std::int64_t before = options.variants->packed_on_demand();
    EXPECT_TRUE(load_workers(options, {**checkpoint}).ok());
    return options.variants->packed_on_demand() - before;
  };
  const std::filesystem::path folder = options.variants->model_directory();
  std::filesystem::remove_all(folder);
  std::ofstream(folder) << "in the way";
  EXPECT_GT(packed_by_a_load(), 0);
  std::filesystem::remove(folder);
  EXPECT_GT(packed_by_a_load(), 0);
  EXPECT_EQ(packed_by_a_load(), 0) << "all are on disk";
}

// Sends random wishes for migrations while a load runs, until at least as many requests have moved.
// Returns the number of requests that moved.
std::int64_t run_with_migrations(FleetLoad& load, std::int64_t least) {
  constexpr std::uint64_t kMostRequests = 20'000;
  std::mt19937 random(1);
  std::uint64_t wishes = 0;
  std::uint64_t answered = 0;
  const auto moved = [&load] {
    return load.observed[ReplicaId{0}].adopted_with_kv_total +
           load.observed[ReplicaId{1}].adopted_with_kv_total;
  };
  load.run(kMostRequests, 16, [&](const OutputBatch& batch) {
    for (const Output& output : batch.outputs) {
      if (const auto* answer = std::get_if<MigrationAnswered>(&output)) {
        EXPECT_TRUE(answer->requests.ok());
        ++answered;
      }
    }
    if (wishes == answered) {
      const ReplicaId from{static_cast<std::int32_t>(random() % 2)};
      const int requests = 1 + static_cast<int>(random() % 4);
      load.inbox.push(
          {steady_now_ns(), WantMigration{++wishes, ReplicaId{1 - from.value}, requests}, from});
    }
    if (moved() >= least) {
      load.enough();
    }
  });
  return moved();
}

TEST_F(ReplicasTest, AThousandLiveMigrationsUnderLoadChangeNoToken) {
  FleetLoad two(options_for({.replicas = 2}), *this);
  EXPECT_GE(run_with_migrations(two, 1'000), 1'000);
  FleetLoad one(options_for({}), *this);
  one.run(two.answers.size(), 16);
  expect_same(two.answers, one.answers);
}

// KV is too small for the load, and requests of different lengths come in turns.
TEST_F(ReplicasTest, MovesByLoadChangeNoToken) {
  constexpr std::uint64_t kMostRequests = 20'000;
  kv_cache_memory = "640KiB";
  ReplicaOptions options = options_for({.replicas = 2});
  options.router = RouterPolicy::kRoundRobin;
  options.migrate = MigratePolicy::kLoad;
  FleetLoad two(options, *this);
  std::int64_t moved = 0;
  two.run(kMostRequests, 20, [&](const OutputBatch&) {
    moved = two.observed[ReplicaId{0}].adopted_with_kv_total +
            two.observed[ReplicaId{1}].adopted_with_kv_total;
    if (moved >= 10) {
      two.enough();
    }
  });
  EXPECT_GE(moved, 10);
  FleetLoad one(options_for({}), *this);
  one.run(two.answers.size(), 16);
  expect_same(two.answers, one.answers);
}

TEST_F(ReplicasTest, RequestsOfAReplicaThatHangsGoOnInTheOther) {
  constraint = std::make_shared<HangingOnce>(false);
  FleetLoad one(options_for({}), *this);
  one.run(20, 8);
  ReplicaOptions options = options_for({.replicas = 2});
  options.device_timeout_ns = 5 * kNsPerS;
  const auto hangs = std::make_shared<HangingOnce>(true);
  constraint = hangs;
  std::shared_ptr<const GroupsStatus> status;
  {
    FleetLoad two(options, *this);
    two.run(20, 8,
            [&](const OutputBatch& batch) { status = batch.groups ? batch.groups : status; });
    expect_same(two.answers, one.answers);
    hangs->goes_on.release();
  }
  ASSERT_NE(status, nullptr);
  ASSERT_EQ(status->failed.size(), 1U);
  EXPECT_EQ(status->failed.front().why, "has not answered for 5 s");
}

// The first device hangs to the end of the process, and the second one waits for it.
TEST_F(ReplicasTest, AModelIsUnloadedThoughADeviceHangs) {
  const auto hangs = std::make_shared<HangingOnce>(true);
  constraint = hangs;
  ReplicaOptions options = options_for({.tensor = 2});
  options.device_timeout_ns = 5 * kNsPerS;
  FleetLoad load(options, *this);
  load.inbox.push({steady_now_ns(), Arrival{request(3)}});
  ASSERT_TRUE(hangs->entered.try_acquire_for(std::chrono::minutes(1)));
}

// What makes microbatches take equal times is the cost model's.
TEST_F(ReplicasTest, MicrobatchesAreDividedByThePredictedTime) {
  ReplicaOptions options = options_for({.pipeline = 2});
  StepCost cost = nominal_step_cost(spec);
  cost.context_token_us = 0.01;
  cost.sequence_us = 30;
  cost.kv_token_us = 2;
  options.cost = group_cost(cost, spec, kPrecisions, kAssumedTransfer);
  const EngineConfig config = engine_config(options, spec);
  const StepBalance& balance = config.scheduler.balance;
  const auto us = [&](double decodes, double context) {
    return predict_us(config.step_cost,
                      {.tokens = decodes,
                       .sequences = decodes,
                       .logit_rows = decodes,
                       .context_tokens = decodes * context,
                       .kv_tokens = decodes * context},
                      config.step_precision);
  };
  for (const int context : {16, 100, 1500}) {
    EXPECT_NEAR(balance.of(context - 1, 1), us(401, context) - us(400, context), 0.01) << context;
  }
  const KvForm& kv = options.sizing.form.kv;
  cost.far_kv_token_us = 4;
  // A step reads half of the blocks. Caches hold a quarter of it in all layers, half of it in the
  // half of the layers that a stage has.
  cost.near_kv_tokens = static_cast<double>(kv.blocks * kv.block_tokens) / 8;
  options.cost = group_cost(cost, spec, kPrecisions, kAssumedTransfer);
  EXPECT_NEAR(engine_config(options, spec).scheduler.balance.per_kv_token,
              balance.per_kv_token + 0.5 * 4 / 2, 0.01);
  ModelSpec ungated = spec;
  ungated.mlp.gated = false;
  options.cost = {};  // not known: a nominal cost's proportions
  EXPECT_LT(engine_config(options, ungated).scheduler.balance.per_token,
            engine_config(options, spec).scheduler.balance.per_token);
  options.model.microbatches = "tokens";
  EXPECT_EQ(engine_config(options, spec).scheduler.balance.of(1000, 7), 7);
  EXPECT_FALSE(engine_config(options, spec).scheduler.balance.longest_first);
  options.model.microbatches = "released";
  EXPECT_TRUE(engine_config(options, spec).scheduler.balance.longest_first);
}

// With two stages, several steps are in flight.
TEST_F(ReplicasTest, RequestsMoveBetweenGroupsOfDevices) {
  for (const auto& [tensor, pipeline] : {std::pair{2, 1}, {1, 2}}) {
    FleetLoad two(options_for({.replicas = 2, .tensor = tensor, .pipeline = pipeline}), *this);
    EXPECT_GE(run_with_migrations(two, 50), 50) << "TP " << tensor << ", PP " << pipeline;
    FleetLoad one(options_for({.tensor = tensor, .pipeline = pipeline}), *this);
    one.run(two.answers.size(), 16);
    expect_same(two.answers, one.answers);
    EXPECT_GT(one.observed.at(ReplicaId{0}).devices.span_ns, 0);
    EXPECT_GT(one.observed.at(ReplicaId{0}).devices.busy_ns, 0);
  }
}

}  // namespace
}  // namespace protean

#include "replica/step_costs.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "device/cpu/team.h"
#include "model/random_checkpoint.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

ModelSpec interrupted_spec() {
  ModelSpec spec{.architecture = "test",
                 .layers = 3,
                 .hidden = 64,
                 .ffn = 128,
                 .vocab = 300,
                 .max_context = 512};
  spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
  return spec;
}

// Measures a fingerprint with pauses, each of which counts, and returns it.
Result<Fingerprint> measure(const StepCostSource& source, const std::function<void()>& pause,
                            const std::string& expected_remark = "", bool quiet = true) {
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, interrupted_spec(), 1);
  std::string remark;
  auto found = learn_step_cost(
      source, checkpoint,
      {.layers = {Precision::kBf16},
       .kv = {},
       .budget_s = 0,
       .harvest = {.await_turn =
                       [&] {
                         pause();
                         return true;
                       },
                   .quiet = [&] { return quiet ? std::optional<std::uint64_t>(0) : std::nullopt; }},
       .patience_s = 0.01},
      &remark);
  EXPECT_EQ(remark, expected_remark);
  return found;
}

TEST(StepCosts, AFingerprintGoesOnWhereItsProcessEnded) {
  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("step_costs_test.{}", ::getpid());
  fs::create_directories(folder / "model");
  std::ofstream(folder / "model" / "model.safetensors") << "weights";
  std::ofstream(folder / "model" / "config.json") << "{}";
  const StepCostSource source{
      .model = folder / "model", .directory = folder / "cache", .version = "1"};
  int whole = 0;
  const auto uninterrupted = measure(source, [&] {
    if (++whole == 20) {  // what is on disk is what a process that ended now would leave
      fs::copy(folder / "cache", folder / "stopped");
    }
  });
  ASSERT_TRUE(uninterrupted.ok()) << uninterrupted.error().message;
  ASSERT_TRUE(fs::exists(folder / "stopped"));
  EXPECT_EQ(uninterrupted->kept_times, 0);
  const StepCostSource stopped{
      .model = folder / "model", .directory = folder / "stopped", .version = "1"};
  const FingerprintOptions options{.layers = {Precision::kBf16}};
  EXPECT_FALSE(kept_step_cost(stopped, interrupted_spec(), options).ok());
  int rest = 0;
  const auto resumed = measure(stopped, [&] { ++rest; });
  ASSERT_TRUE(resumed.ok()) << resumed.error().message;
  EXPECT_GT(resumed->kept_times, 0);
  EXPECT_LT(rest, whole);
  EXPECT_EQ(resumed->steps.size(), uninterrupted->steps.size());
  EXPECT_TRUE(kept_step_cost(stopped, interrupted_spec(), options).ok());
  // The times of a fingerprint that is saved are not kept.
  EXPECT_EQ(measure(stopped, [] {})->kept_times, 0);
  fs::remove_all(folder);
}

TEST(StepCosts, AFingerprintBeginsAnewAfterItsTimesAreForgotten) {
  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("step_costs_anew_test.{}", ::getpid());
  fs::create_directories(folder / "model");
  std::ofstream(folder / "model" / "model.safetensors") << "weights";
  std::ofstream(folder / "model" / "config.json") << "{}";
  const StepCostSource source{
      .model = folder / "model", .directory = folder / "cache", .version = "1"};
  int turns = 0;
  ASSERT_TRUE(measure(source, [&] {
                if (++turns == 20) {
                  fs::copy(folder / "cache", folder / "stopped");
                }
              }).ok());
  const StepCostSource stopped{
      .model = folder / "model", .directory = folder / "stopped", .version = "1"};
  const FingerprintOptions options{.layers = {Precision::kBf16}};
  ASSERT_TRUE(forget_step_times(stopped, interrupted_spec(), options).ok());
  EXPECT_EQ(measure(stopped, [] {})->kept_times, 0);
  fs::remove_all(folder);
}

TEST(StepCosts, SumsAmongDevicesAreMeasuredOnceAndKept) {
  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("step_costs_sums_test.{}", ::getpid());
  fs::create_directories(folder / "model");
  std::ofstream(folder / "model" / "model.safetensors") << "weights";
  std::ofstream(folder / "model" / "config.json") << "{}";
  const StepCostSource source{
      .model = folder / "model", .directory = folder / "cache", .version = "1"};
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, interrupted_spec(), 1);
  int turns = 0;
  FingerprintOptions options{.layers = {Precision::kBf16},
                             .kv = {},
                             .budget_s = 0,
                             .harvest = {.await_turn = [&] { return ++turns > 0; }, .quiet = {}}};
  const auto sums_known = [&]() -> std::optional<Transfer> {
    turns = 0;
    const auto cost = known_step_cost(source, checkpoint, options);
    EXPECT_TRUE(cost.ok()) << cost.error().message;
    return cost.ok() ? cost->of(Precision::kBf16).sums : std::nullopt;
  };
  EXPECT_FALSE(sums_known()) << "one device has no sums";
  EXPECT_GT(turns, 0);
  options.sharing = {CpuShare(), CpuShare()};
  const auto measured = sums_known();
  ASSERT_TRUE(measured.has_value());
  EXPECT_GT(turns, 0) << "what was kept knew no sums";
  const auto kept = sums_known();
  EXPECT_EQ(turns, 0);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->us, measured->us);
  EXPECT_EQ(kept->bytes_per_us, measured->bytes_per_us);
  options.sharing.clear();
  EXPECT_TRUE(sums_known().has_value());
  EXPECT_EQ(turns, 0) << "what is kept serves one device too";
  std::string remark;
  ASSERT_TRUE(learn_step_cost(source, checkpoint, options, &remark).ok());
  EXPECT_EQ(remark, "");
  const auto replaced = sums_known();
  ASSERT_TRUE(replaced.has_value()) << "a fingerprint without sums is in its place";
  EXPECT_EQ(replaced->us, kept->us);
  EXPECT_EQ(replaced->bytes_per_us, kept->bytes_per_us);
  fs::remove_all(folder);
}

TEST(StepCosts, WhatIsKeptServesIfSumsCannotBeMeasured) {
  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("step_costs_no_sums_test.{}", ::getpid());
  fs::create_directories(folder / "model");
  std::ofstream(folder / "model" / "model.safetensors") << "weights";
  std::ofstream(folder / "model" / "config.json") << "{}";
  const StepCostSource source{
      .model = folder / "model", .directory = folder / "cache", .version = "1"};
  cpu::Team team(1);
  const RandomCheckpoint checkpoint(team, interrupted_spec(), 1);
  bool goes_on = true;
  FingerprintOptions options{.layers = {Precision::kBf16},
                             .kv = {},
                             .budget_s = 0,
                             .harvest = {.await_turn = [&] { return goes_on; }, .quiet = {}}};
  const auto alone = known_step_cost(source, checkpoint, options);
  ASSERT_TRUE(alone.ok()) << alone.error().message;
  options.sharing = {CpuShare(), CpuShare()};
  goes_on = false;
  const auto kept = known_step_cost(source, checkpoint, options);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_FALSE(kept->of(Precision::kBf16).sums.has_value());
  EXPECT_EQ(kept->wake_us, alone->wake_us);
  fs::remove_all(folder);
}

TEST(StepCosts, AFingerprintThatRequestsDisturbedIsNotKept) {
  const fs::path folder =
      fs::path(testing::TempDir()) / fmt::format("step_costs_busy_test.{}", ::getpid());
  fs::create_directories(folder / "model");
  std::ofstream(folder / "model" / "model.safetensors") << "weights";
  std::ofstream(folder / "model" / "config.json") << "{}";
  const StepCostSource source{
      .model = folder / "model", .directory = folder / "cache", .version = "1"};
  const FingerprintOptions options{.layers = {Precision::kBf16}};
  const auto busy = measure(
      source, [] {}, "requests came whenever 29 of its steps were timed", false);
  ASSERT_TRUE(busy.ok()) << busy.error().message;
  EXPECT_TRUE(busy->cost.of(Precision::kBf16).is_known())
      << "it serves until there is a better one";
  EXPECT_FALSE(kept_step_cost(source, interrupted_spec(), options).ok());
  const auto quiet = measure(source, [] {});
  ASSERT_TRUE(quiet.ok()) << quiet.error().message;
  EXPECT_EQ(quiet->kept_times, 0) << "no disturbed time is kept";
  EXPECT_TRUE(kept_step_cost(source, interrupted_spec(), options).ok());
  fs::remove_all(folder);
}

}  // namespace
}  // namespace protean

#include "apps/placements.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace protean {
namespace {

constexpr TimeNs kWindowNs = 10 * kNsPerS;

EstimatedConfiguration one_device() {
  return {.configuration = {},
          .latency = {.ttft_us = 0, .tpot_us = 100'000},
          .memory = {.block_bytes = 1},
          .total_bytes = 1};
}

// Returns the plan of a model of one layer on this device, one of two with a CPU each.
std::shared_ptr<const PlanReport> report_on(int device) {
  PlanReport report;
  report.wish.spec.layers = 1;
  report.wish.spec.max_context = 4096;
  report.wish.intent = *parse_intent("min-latency");
  for (const int cpu : {0, 1}) {
    report.devices.devices.push_back({.cpus = {.threads = 1, .where = {.cpus = {cpu}}}});
  }
  report.deployment.candidates = {one_device()};
  report.deployment.placement = {.devices = {device}, .stage_layers = {1}};
  report.estimate_for = [](const PlannedLoad&) { return std::vector{one_device()}; };
  return std::make_shared<const PlanReport>(std::move(report));
}

struct PlacementsTest : testing::Test {
  // Both models compute on device 0.
  void begin(Placements& placements) {
    placements.add(0, report_on(0), {.load_s = 0.1});
    placements.add(1, report_on(0), {.load_s = 0.1});
  }
  // Watches the models for so many seconds. Returns the model that moves first, or -1.
  int watch(Placements& placements, int seconds, const std::vector<ModelSample>& samples) {
    for (int second = 0; second < seconds; ++second) {
      now_ns += kNsPerS;
      if (const auto move = placements.choose_move(samples, now_ns)) {
        return static_cast<int>(move->model);
      }
    }
    return -1;
  }
  TimeNs now_ns = 0;
};

TEST_F(PlacementsTest, TheSecondBestMovesIfTheBestMayNot) {
  Placements free(kWindowNs);
  begin(free);
  const int best = watch(free, 30, {{.model = 0, .running = 1}, {.model = 1, .running = 1}});
  ASSERT_GE(best, 0) << "both are busy on one device";
  Placements steered(kWindowNs);
  begin(steered);
  EXPECT_EQ(watch(steered, 30,
                  {{.model = 0, .running = 1, .may_move = best != 0},
                   {.model = 1, .running = 1, .may_move = best != 1}}),
            1 - best);
}

TEST_F(PlacementsTest, LoadsAreKnownWhileModelsChangeAndMovesWaitForAWindow) {
  Placements placements(kWindowNs);
  begin(placements);
  const std::vector<ModelSample> changing = {{.model = 0, .running = 1, .may_move = false},
                                             {.model = 1, .running = 0, .may_move = false}};
  EXPECT_EQ(watch(placements, 30, changing), -1);
  EXPECT_EQ(placements.device_loads(), (std::vector{1.0, 0.0}));
  EXPECT_EQ(placements.device_loads(0), (std::vector{0.0, 0.0}));
  const std::vector<ModelSample> busy = {{.model = 0, .running = 1}, {.model = 1, .running = 1}};
  EXPECT_EQ(watch(placements, 9, busy), -1) << "the window begins when the change has ended";
  EXPECT_NE(watch(placements, 20, busy), -1);
  // A model that is planned again in the same place keeps its load.
  placements.add(0, report_on(1), {.load_s = 0.1});
  EXPECT_EQ(placements.device_loads()[1], 1.0);
}

TEST_F(PlacementsTest, NothingMovesToADeviceThatHasFailed) {
  Placements placements(kWindowNs);
  begin(placements);
  placements.lose(std::vector{1});
  EXPECT_EQ(placements.lost(), std::vector{1});
  EXPECT_EQ(watch(placements, 30, {{.model = 0, .running = 1}, {.model = 1, .running = 1}}), -1);
}

TEST_F(PlacementsTest, APlanUsesADeviceThatHasFailedSince) {
  Placements placements(kWindowNs);
  placements.lose(std::vector{1});
  EXPECT_FALSE(placements.uses_lost(*report_on(0)));
  EXPECT_TRUE(placements.uses_lost(*report_on(1)));
}

TEST(PlanForDevices, APlanThatIsMadeAgainCountsOnWhatIsThereThen) {
  DevicesNow present{.lost = {}, .loads = {0.5, 0.25}, .unclaimed_bytes = 1000};
  std::vector<DevicesNow> planned;
  const auto plan = [&](const DevicesNow& devices) {
    planned.push_back(devices);
    if (planned.size() == 1) {  // a device that hangs keeps its memory
      present = {.lost = {0}, .loads = {0, 0.75}, .unclaimed_bytes = 400};
    }
    return planned.size();
  };
  const auto now = [&] { return present; };
  EXPECT_EQ(plan_for_devices(
                now, [] { return false; }, plan),
            2U);
  EXPECT_EQ(planned.back().lost, std::vector{0});
  EXPECT_EQ(planned.back().loads, (std::vector{0.0, 0.75}));
  EXPECT_EQ(planned.back().unclaimed_bytes, 400);
}

TEST(PlanForDevices, APlanThatIsTakenBackIsNotMadeAgain) {
  int failed = 0;
  const auto now = [&] { return DevicesNow{.lost = {failed++}}; };
  int plans = 0;
  EXPECT_EQ(plan_for_devices(
                now, [] { return true; }, [&](const DevicesNow&) { return ++plans; }),
            1);
}

TEST_F(PlacementsTest, DevicesThatFailedAreKnownByTheirCpusOrElseByTheirPlace) {
  PlanReport report = *report_on(0);
  report.deployment.placement = {.devices = {1, 0}, .stage_layers = {1, 1}};
  const auto on = [](int cpu) { return CpuShare{.threads = 1, .where = {.cpus = {cpu}}}; };
  const std::vector bound = {on(0), on(1)};  // a list of CPUs is in their order
  EXPECT_EQ(devices_that_failed(report, bound, {0}), std::vector{0});
  EXPECT_EQ(devices_that_failed(report, bound, {1}), std::vector{1});
  const std::vector<CpuShare> free(2);
  EXPECT_EQ(devices_that_failed(report, free, {0}), std::vector{1});
  EXPECT_EQ(devices_that_failed(report, free, {}), (std::vector{1, 0})) << "any may have failed";
}

TEST_F(PlacementsTest, LoadsAreKnownWithoutMoves) {
  Placements placements(0);
  begin(placements);
  EXPECT_EQ(watch(placements, 300, {{.model = 0, .running = 1}, {.model = 1, .running = 1}}), -1);
  EXPECT_EQ(placements.device_loads(), (std::vector{1.0, 0.0}));
}

}  // namespace
}  // namespace protean

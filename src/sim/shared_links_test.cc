#include "sim/shared_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "base/units.h"
#include "cost/step_sizes.h"
#include "fleet/grouped_devices_for_test.h"
#include "sim/simulated_devices.h"

namespace protean {
namespace {

constexpr Transfer kCost = {.us = 3, .bytes_per_us = 100};

TEST(SharedLinks, TransfersAtOnceTakeTwiceAsLongOnOneLink) {
  const std::array<std::int64_t, 1> bytes = {1000};
  const auto ends_us = [&](const std::vector<int>& first, const std::vector<int>& second) {
    SharedLinks links;
    EXPECT_EQ(links.arrive_ns(kCost, first, bytes, 0), 13 * kNsPerUs);
    return links.arrive_ns(kCost, second, bytes, 0) / kNsPerUs;
  };
  EXPECT_EQ(ends_us({}, {}), 3 + 10) << "not shared";
  EXPECT_EQ(ends_us({0}, {1}), 3 + 10) << "another link";
  EXPECT_EQ(ends_us({0}, {0}), 3 + 20);
}

TEST(SharedLinks, ALinkCarriesTheBytesOfAllItsDevices) {
  const std::array<std::int64_t, 3> bytes = {1000, 500, 0};
  const auto end_us = [&](const std::vector<int>& of_devices) {
    return SharedLinks().arrive_ns(kCost, of_devices, bytes, 0) / kNsPerUs;
  };
  EXPECT_EQ(end_us({}), 3 + 10);
  EXPECT_EQ(end_us({0, 1, 1}), 3 + 10);
  EXPECT_EQ(end_us({0, 0, 1}), 3 + 15);
}

// Transfers in any order take the first free times, as a link does that is cut into slots of 1 ns.
TEST(SharedLinks, ATransferTakesTheFirstTimesThatAreFree) {
  constexpr int kSlots = 4000;
  const std::array link = {7};
  std::mt19937 random(3);
  const auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
  SharedLinks links;
  std::vector<bool> taken(kSlots);
  for (int i = 0; i < 100; ++i) {
    const int from = below(1500);
    const int busy = below(20);
    int end = from;
    for (int left = busy; left > 0; ++end) {
      left -= taken[static_cast<std::size_t>(end)] ? 0 : 1;
    }
    ASSERT_EQ(links.after_ns(link, from, busy), end);
    ASSERT_EQ(links.take(link, from, busy), end);
    std::fill(taken.begin() + from, taken.begin() + end, true);
    const int until = from + below(500);
    ASSERT_EQ(links.free_ns(link, from, until),
              std::count(taken.begin() + from, taken.begin() + until, false));
  }
  const TimeNs free_ns = links.free_ns(link, 1000, 2000);
  links.forget_before(1000);
  EXPECT_EQ(links.free_ns(link, 1000, 2000), free_ns);
}

// Returns when each event comes.
std::vector<TimeNs> times_us(EventHeap& heap) {
  std::vector<TimeNs> times;
  while (!heap.empty()) {
    times.push_back(heap.pop().at_ns / kNsPerUs);
  }
  return times;
}

struct LinkScene {
  LinkScene(const DeviceTimes& times, const std::optional<MorphModel::Devices>& form)
      : devices(std::vector(4, form), times, 1,
                {now_ns, heap, [](RequestId, int) { return TokenId{1}; }}) {}

  TimeNs now_ns = 0;
  EventHeap heap;
  SimulatedDevices devices;
};

// Two requests move to replicas of the same node, or of two nodes.
TEST(SimulatedLinks, RequestsThatMoveAtOnceShareALink) {
  const auto ends_us = [](int devices_on_link) {
    DeviceTimes times{.cost = {}, .morph = {}, .block_copy_us = 10, .step_precision = {}};
    times.cost.devices_on_link = devices_on_link;
    LinkScene scene(times, std::nullopt);
    scene.devices.copy(CopyId{1}, ReplicaId{0}, ReplicaId{1}, {{0, 0}, {1, 1}});
    scene.devices.copy(CopyId{2}, ReplicaId{2}, ReplicaId{3}, {{0, 0}, {1, 1}});
    return times_us(scene.heap);
  };
  EXPECT_EQ(ends_us(0), (std::vector<TimeNs>{20, 20}));
  EXPECT_EQ(ends_us(2), (std::vector<TimeNs>{20, 20}));
  EXPECT_EQ(ends_us(4), (std::vector<TimeNs>{20, 40}));
}

// Replicas of two stages hand over the same rows at the same time.
TEST(SimulatedLinks, PipelinesThatHandOverAtOnceShareALink) {
  const ModelSpec spec = group_spec();
  const std::array stages = {DeviceId{0}, DeviceId{1}};
  const Form form = divide(group_form(40), even_division(spec.layers, 1, 2), stages);
  PageBudget budget{.page_bytes = 4096};
  budget.pages = form_pages(spec, form, budget.page_bytes);
  constexpr int kTokens = 10;
  constexpr int kRowsUs = 500;
  const auto ends_us = [&](int devices_on_link) {
    DeviceTimes times{.cost = {}, .morph = {}, .step_precision = {}};
    times.cost.shared.fill({.fixed_us = 100, .token_us = 10});
    times.cost.rows = {.us = 0, .bytes_per_us = kTokens * spec.hidden * 4.0 / kRowsUs};
    times.cost.devices_on_link = devices_on_link;
    LinkScene scene(times, MorphModel::Devices{spec, budget, form});
    for (std::size_t replica = 0; replica < 2; ++replica) {
      scene.devices.executor(replica).start(plan_of(prefill_sizes(kTokens), spec.vocab, 4));
    }
    return times_us(scene.heap);
  };
  const std::vector<TimeNs> apart = ends_us(0);
  ASSERT_EQ(apart.size(), 2U);
  EXPECT_EQ(apart[0], apart[1]);
  EXPECT_EQ(ends_us(2), apart) << "a link for each replica";
  EXPECT_EQ(ends_us(4), (std::vector<TimeNs>{apart[0], apart[1] + kRowsUs}));
}

}  // namespace
}  // namespace protean

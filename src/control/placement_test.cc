#include "control/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "control/deployment.h"
#include "cost/known_models.h"

namespace protean {
namespace {

// A small case, and the answers of a search through everything.
struct SmallCase {
  std::vector<DeviceState> devices;
  ConfigurationMemory memory;
  Configuration configuration;
  int layers = 1;
};

SmallCase random_case(std::mt19937& random) {
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  SmallCase small;
  const int devices = draw(1, 5);
  for (int device = 0; device < devices; ++device) {
    small.devices.push_back({.free_bytes = draw(0, 40), .load = draw(0, 4) / 4.0});
  }
  do {
    small.configuration.tensor = 1 << draw(0, 2);
    small.configuration.stages = draw(1, 4);
  } while (small.configuration.devices() > devices);
  small.layers = draw(small.configuration.stages, 7);
  small.memory = {.tensor = small.configuration.tensor,
                  .block_bytes = draw(1, 9),
                  .end_bytes = draw(0, 12),
                  .buffer_bytes = draw(0, 3)};
  return small;
}

// Calls `visit` with every way to give at least one layer to each stage, until it returns true.
bool any_partition(std::vector<int>& counts, std::size_t stage, int left,
                   const std::function<bool(const std::vector<int>&)>& visit) {
  if (stage + 1 == counts.size()) {
    counts[stage] = left;
    return left > 0 && visit(counts);
  }
  for (int count = 1; count < left; ++count) {
    counts[stage] = count;
    if (any_partition(counts, stage + 1, left - count, visit)) {
      return true;
    }
  }
  return false;
}

bool holds(const SmallCase& small, const std::vector<int>& devices,
           const std::vector<int>& stage_layers) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::size_t stage = i / static_cast<std::size_t>(small.memory.tensor);
    const bool end = stage == 0 || stage + 1 == stage_layers.size();
    if (small.memory.device_bytes(stage_layers[stage], end) >
        small.devices[static_cast<std::size_t>(devices[i])].free_bytes) {
      return false;
    }
  }
  return true;
}

// True if any order of these devices and any partition of the layers fits.
bool fits_somehow(const SmallCase& small, std::vector<int> devices) {
  std::sort(devices.begin(), devices.end());
  std::vector<int> counts(static_cast<std::size_t>(small.configuration.stages));
  do {
    if (any_partition(counts, 0, small.layers, [&](const std::vector<int>& layers) {
          return holds(small, devices, layers);
        })) {
      return true;
    }
  } while (std::next_permutation(devices.begin(), devices.end()));
  return false;
}

// Returns the first set of devices that fits, in the order of all sets that `order` gives.
std::optional<std::vector<int>> first_set(const SmallCase& small, const std::vector<int>& order) {
  const auto count = static_cast<std::size_t>(small.configuration.devices());
  if (order.size() < count) {
    return std::nullopt;
  }
  std::vector<bool> taken(order.size(), false);
  std::fill(taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(count), true);
  do {
    std::vector<int> devices;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (taken[i]) {
        devices.push_back(order[i]);
      }
    }
    std::sort(devices.begin(), devices.end());
    if (fits_somehow(small, devices)) {
      return devices;
    }
  } while (std::prev_permutation(taken.begin(), taken.end()));
  return std::nullopt;
}

std::vector<int> ordered(const SmallCase& small, bool least_first,
                         const std::function<bool(double)>& wanted) {
  std::vector<int> devices;
  for (int device = 0; device < static_cast<int>(small.devices.size()); ++device) {
    if (wanted(small.devices[static_cast<std::size_t>(device)].load)) {
      devices.push_back(device);
    }
  }
  std::stable_sort(devices.begin(), devices.end(), [&](int a, int b) {
    const double load_a = small.devices[static_cast<std::size_t>(a)].load;
    const double load_b = small.devices[static_cast<std::size_t>(b)].load;
    return least_first ? load_a < load_b : load_a > load_b;
  });
  return devices;
}

std::optional<std::vector<int>> searched(const SmallCase& small, const PlacementOptions& options) {
  const auto any = [](double) { return true; };
  switch (options.policy) {
    case PlacementPolicy::kLeastLoaded:
      return first_set(small, ordered(small, true, any));
    case PlacementPolicy::kPacking:
      return first_set(small, ordered(small, false, any));
    case PlacementPolicy::kHybrid:
      break;
  }
  const auto packable = [&](double load) { return load < options.theta; };
  if (auto found = first_set(small, ordered(small, false, packable))) {
    return found;
  }
  if (auto found = first_set(small, ordered(small, true, std::not_fn(packable)))) {
    return found;
  }
  return first_set(small, ordered(small, true, any));
}

TEST(Placement, AgreesWithASearchThroughAllSetsOrdersAndPartitions) {
  std::mt19937 random(1);
  int placed = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const SmallCase small = random_case(random);
    for (const PlacementPolicy policy :
         {PlacementPolicy::kLeastLoaded, PlacementPolicy::kPacking, PlacementPolicy::kHybrid}) {
      const PlacementOptions options{.policy = policy, .theta = 0.5};
      const auto expected = searched(small, options);
      const auto found =
          place(small.configuration, small.devices, small.memory, small.layers, options);
      ASSERT_EQ(found.has_value(), expected.has_value()) << trial;
      ASSERT_EQ(found.has_value(),
                fits_devices(small.configuration, small.devices, small.memory, small.layers))
          << trial;
      if (!found) {
        continue;
      }
      ++placed;
      std::vector<int> devices = found->devices;
      std::sort(devices.begin(), devices.end());
      ASSERT_EQ(devices, *expected) << trial;
      ASSERT_TRUE(holds(small, found->devices, found->stage_layers)) << trial;
      ASSERT_EQ(std::accumulate(found->stage_layers.begin(), found->stage_layers.end(), 0),
                small.layers);
    }
  }
  EXPECT_GT(placed, 500);   // cases that fit
  EXPECT_LT(placed, 2500);  // and cases that do not
}

TEST(Placement, MissingBytesAreTheLeastThatHelp) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 1000; ++trial) {
    SmallCase small = random_case(random);
    const std::int64_t missing =
        missing_bytes(small.configuration, small.devices, small.memory, small.layers);
    const auto fits = [&](std::int64_t more) {
      SmallCase roomier = small;
      for (DeviceState& device : roomier.devices) {
        device.free_bytes += more;
      }
      return first_set(roomier, ordered(roomier, true, [](double) { return true; })).has_value();
    };
    ASSERT_TRUE(fits(missing)) << trial;
    ASSERT_TRUE(missing == 0 || !fits(missing - 1)) << trial;
  }
}

TEST(Placement, NothingGoesToADeviceThatHasFailed) {
  const ConfigurationMemory memory{.tensor = 1, .block_bytes = 1};
  const std::vector<DeviceState> devices = {
      {.free_bytes = 50}, {.free_bytes = 100, .lost = true}, {.free_bytes = 40}};
  EXPECT_TRUE(fits_devices({}, devices, memory, 50));
  EXPECT_FALSE(fits_devices({}, devices, memory, 51));
  for (const auto policy : {PlacementPolicy::kLeastLoaded, PlacementPolicy::kPacking}) {
    const auto placed = place({.stages = 2}, devices, memory, 8, {.policy = policy});
    EXPECT_EQ(placed->devices, (std::vector{0, 2}));
  }
  EXPECT_FALSE(place({.stages = 3}, devices, memory, 8, {}));
  EXPECT_EQ(missing_bytes({}, devices, memory, 60), 10);
}

TEST(Placement, EqualRoomsArePlacedInTheOrderOfDevices) {
  const ConfigurationMemory memory{.tensor = 1, .block_bytes = 1, .end_bytes = 2};
  const auto placed = [&](const std::vector<DeviceState>& devices) {
    const auto found = place({.stages = 5}, devices, memory, 20, {});
    EXPECT_EQ(found->stage_layers, std::vector(5, 4))
        << "devices with room for 3 layers at an end are in the middle";
    return found->devices;
  };
  EXPECT_EQ(placed({{10}, {5}, {10}, {5}, {10}}), (std::vector{0, 1, 2, 3, 4}));
  EXPECT_EQ(placed({{5}, {10}, {5}, {10}, {5}}), (std::vector{1, 0, 2, 4, 3}));
}

TEST(Placement, StagesAreAsEvenAsMemoryAllows) {
  const ConfigurationMemory memory{.tensor = 1, .block_bytes = 1};
  const std::vector<DeviceState> devices = {{6}, {100}, {9}, {7}};
  const auto found = place({.stages = 4}, devices, memory, 32, {});
  ASSERT_TRUE(found.has_value());
  std::vector<int> sorted = found->stage_layers;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<int>{6, 7, 9, 10}));
}

}  // namespace
}  // namespace protean

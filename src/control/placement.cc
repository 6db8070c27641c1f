#include "control/placement.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr std::array<std::pair<std::string_view, PlacementPolicy>, 3> kPolicies = {{
    {"least-loaded", PlacementPolicy::kLeastLoaded},
    {"packing", PlacementPolicy::kPacking},
    {"hybrid", PlacementPolicy::kHybrid},
}};

const DeviceState& at(std::span<const DeviceState> states, int device) {
  return states[static_cast<std::size_t>(device)];
}

// Sorts devices by free memory, the most first; equal ones stay in their order.
void sort_by_memory(std::vector<int>& devices, std::span<const DeviceState> states) {
  std::stable_sort(devices.begin(), devices.end(), [&](int a, int b) {
    return at(states, a).free_bytes > at(states, b).free_bytes;
  });
}

// Devices that share layers, and the layers that the one with the least memory has room for: in the
// middle of the pipeline and at its ends.
struct DeviceRoom {
  std::vector<int> devices;
  int middle = 0;
  int end = 0;
};

int room_of(const ConfigurationMemory& memory, std::int64_t free_bytes, bool end, int layers) {
  const std::int64_t room = free_bytes - memory.device_bytes(0, end);
  if (room < 0) {
    return 0;
  }
  return static_cast<int>(
      std::min<std::int64_t>(layers, memory.block_bytes > 0 ? room / memory.block_bytes : layers));
}

// Puts devices of similar memory together: of all ways to make stages, this one leaves each stage,
// counted from the roomiest, as much room as any does.
std::vector<DeviceRoom> rooms_of(std::vector<int> devices, std::span<const DeviceState> states,
                                 const ConfigurationMemory& memory, int layers) {
  sort_by_memory(devices, states);
  std::vector<DeviceRoom> rooms;
  for (std::size_t first = 0; first < devices.size();
       first += static_cast<std::size_t>(memory.tensor)) {
    DeviceRoom room;
    room.devices.assign(devices.begin() + static_cast<std::ptrdiff_t>(first),
                        devices.begin() + static_cast<std::ptrdiff_t>(first) + memory.tensor);
    const std::int64_t least = at(states, room.devices.back()).free_bytes;
    std::sort(room.devices.begin(), room.devices.end());
    room.middle = room_of(memory, least, false, layers);
    room.end = room_of(memory, least, true, layers);
    rooms.push_back(std::move(room));
  }
  return rooms;
}

// Gives one layer after the other to the stage that has fewest of those with room. Nothing if a
// stage gets none or the layers do not fit.
std::optional<std::vector<int>> fill(std::span<const int> room, int layers) {
  std::vector<int> counts(room.size(), 0);
  for (int layer = 0; layer < layers; ++layer) {
    int chosen = -1;
    for (int stage = 0; stage < static_cast<int>(room.size()); ++stage) {
      const auto s = static_cast<std::size_t>(stage);
      if (counts[s] < room[s] &&
          (chosen < 0 || counts[s] < counts[static_cast<std::size_t>(chosen)])) {
        chosen = stage;
      }
    }
    if (chosen < 0) {
      return std::nullopt;
    }
    ++counts[static_cast<std::size_t>(chosen)];
  }
  const bool all = std::all_of(counts.begin(), counts.end(), [](int count) { return count > 0; });
  return all ? std::optional(std::move(counts)) : std::nullopt;
}

int spread(std::span<const int> counts) {
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  return *most - *least;
}

// Orders stages with `first` and `last` at the ends, the others by device, and fills them.
std::optional<Placement> with_ends(std::span<const DeviceRoom> rooms, std::size_t first,
                                   std::size_t last, int layers) {
  std::vector<std::size_t> order;
  for (std::size_t stage = 0; stage < rooms.size(); ++stage) {
    if (stage != first && stage != last) {
      order.push_back(stage);
    }
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return rooms[a].devices.front() < rooms[b].devices.front();
  });
  order.insert(order.begin(), first);
  if (last != first) {
    order.push_back(last);
  }
  std::vector<int> room;
  for (const std::size_t stage : order) {
    const bool end = stage == first || stage == last;
    room.push_back(end ? rooms[stage].end : rooms[stage].middle);
  }
  auto counts = fill(room, layers);
  if (!counts) {
    return std::nullopt;
  }
  Placement placement{.stage_layers = *std::move(counts)};
  for (const std::size_t stage : order) {
    const std::vector<int>& devices = rooms[stage].devices;
    placement.devices.insert(placement.devices.end(), devices.begin(), devices.end());
  }
  return placement;
}

// True if `a` is more even than `b`, or as even with devices in better order.
bool better(const Placement& a, const std::optional<Placement>& b) {
  return !b || std::pair(spread(a.stage_layers), a.devices) <
                   std::pair(spread(b->stage_layers), b->devices);
}

// Returns the devices that have not failed.
std::vector<int> all_devices(std::span<const DeviceState> states) {
  std::vector<int> devices(states.size());
  std::iota(devices.begin(), devices.end(), 0);
  std::erase_if(devices, [&](int device) { return at(states, device).lost; });
  return devices;
}

// Chooses devices in the given order: takes each one with which, and with the roomiest of those
// after it, the configuration still fits.
std::optional<Placement> first_in(const std::vector<int>& order, int count,
                                  std::span<const DeviceState> states,
                                  const ConfigurationMemory& memory, int layers) {
  const auto wanted = static_cast<std::size_t>(count);
  if (order.size() < wanted) {
    return std::nullopt;
  }
  std::vector<int> chosen;
  std::optional<Placement> placement;
  for (std::size_t next = 0; next < order.size() && chosen.size() < wanted; ++next) {
    std::vector<int> rest(order.begin() + static_cast<std::ptrdiff_t>(next) + 1, order.end());
    sort_by_memory(rest, states);
    std::vector<int> trial = chosen;
    trial.push_back(order[next]);
    const std::size_t more = wanted - trial.size();
    if (rest.size() < more) {
      break;
    }
    trial.insert(trial.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(more));
    if (auto found = divide_among(trial, states, memory, layers)) {
      chosen.push_back(order[next]);
      placement = std::move(found);
    }
  }
  return chosen.size() == wanted ? placement : std::nullopt;
}

std::vector<int> by_load(std::vector<int> devices, std::span<const DeviceState> states,
                         bool least_first) {
  std::stable_sort(devices.begin(), devices.end(), [&](int a, int b) {
    return least_first ? at(states, a).load < at(states, b).load
                       : at(states, a).load > at(states, b).load;
  });
  return devices;
}

}  // namespace

Result<PlacementPolicy> parse_placement_policy(std::string_view text) {
  for (const auto& [name, policy] : kPolicies) {
    if (text == name) {
      return policy;
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "placement {} is unknown: use least-loaded, packing or hybrid", text);
}

std::string_view to_string(PlacementPolicy policy) {
  return kPolicies[static_cast<std::size_t>(policy)].first;
}

std::optional<Placement> divide_among(std::span<const int> devices,
                                      std::span<const DeviceState> states,
                                      const ConfigurationMemory& memory, int layers) {
  check(!devices.empty() && std::ssize(devices) % memory.tensor == 0,
        "stages are made of whole TP groups");
  const std::vector<DeviceRoom> rooms =
      rooms_of({devices.begin(), devices.end()}, states, memory, layers);
  std::optional<Placement> best;
  for (std::size_t first = 0; first < rooms.size(); ++first) {
    for (std::size_t last = 0; last < rooms.size(); ++last) {
      if (first == last && rooms.size() > 1) {
        continue;
      }
      auto placement = with_ends(rooms, first, last, layers);
      if (placement && better(*placement, best)) {
        best = std::move(placement);
      }
    }
  }
  return best;
}

std::optional<Placement> place_by_memory(const Configuration& configuration,
                                         std::span<const DeviceState> states,
                                         const ConfigurationMemory& memory, int layers) {
  std::vector<int> devices = all_devices(states);
  if (std::ssize(devices) < configuration.devices()) {
    return std::nullopt;
  }
  sort_by_memory(devices, states);
  devices.resize(static_cast<std::size_t>(configuration.devices()));
  return divide_among(devices, states, memory, layers);
}

std::optional<Placement> place(const Configuration& configuration,
                               std::span<const DeviceState> states,
                               const ConfigurationMemory& memory, int layers,
                               const PlacementOptions& options) {
  const std::vector<int> all = all_devices(states);
  const auto choose = [&](const std::vector<int>& order) {
    return first_in(order, configuration.devices(), states, memory, layers);
  };
  if (options.policy != PlacementPolicy::kHybrid) {
    return choose(by_load(all, states, options.policy == PlacementPolicy::kLeastLoaded));
  }
  std::vector<int> packable;
  std::vector<int> others;
  for (const int device : all) {
    (at(states, device).load < options.theta ? packable : others).push_back(device);
  }
  if (auto placement = choose(by_load(packable, states, false))) {
    return placement;
  }
  if (auto placement = choose(by_load(others, states, true))) {
    return placement;
  }
  return choose(by_load(all, states, true));
}

std::int64_t missing_bytes(const Configuration& configuration, std::span<const DeviceState> states,
                           const ConfigurationMemory& memory, int layers) {
  const auto fits_with = [&](std::int64_t more) {
    std::vector<DeviceState> roomier(states.begin(), states.end());
    for (DeviceState& state : roomier) {
      state.free_bytes += more;
    }
    return place_by_memory(configuration, roomier, memory, layers).has_value();
  };
  check(std::ssize(all_devices(states)) >= configuration.devices(),
        "a configuration has enough devices");
  std::int64_t fits = 0;
  if (fits_with(fits)) {
    return 0;
  }
  std::int64_t fails = 0;
  for (fits = kMiB; !fits_with(fits); fits *= 2) {
    check(fits < kGiB * kGiB, "any configuration fits unbounded memory");
    fails = fits;
  }
  while (fits - fails > 1) {
    const std::int64_t middle = fails + (fits - fails) / 2;
    (fits_with(middle) ? fits : fails) = middle;
  }
  return fits;
}

}  // namespace protean

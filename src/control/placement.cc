#include "control/placement.h"

#include <algorithm>
#include <array>
#include <functional>
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

// Returns the free memory of the device with least in each stage, if stages are made of devices
// with similar memory, the roomiest stage first. Devices that do not fill a stage are left out.
std::vector<std::int64_t> stage_bytes(std::span<const int> devices,
                                      std::span<const DeviceState> states, int tensor) {
  std::vector<std::int64_t> bytes;
  for (const int device : devices) {
    bytes.push_back(at(states, device).free_bytes);
  }
  std::sort(bytes.begin(), bytes.end(), std::greater<>());
  std::vector<std::int64_t> least;
  for (auto last = static_cast<std::size_t>(tensor) - 1; last < bytes.size();
       last += static_cast<std::size_t>(tensor)) {
    least.push_back(bytes[last]);
  }
  return least;
}

// True if the layers fit stages whose devices have so much memory and `more`. The ends of the
// pipeline are the two stages that lose the fewest layers to the embeddings, so no others are
// tried.
bool fit_stages(std::span<const std::int64_t> bytes, std::int64_t more,
                const ConfigurationMemory& memory, int layers) {
  if (bytes.size() == 1) {
    return room_of(memory, bytes.front() + more, true, layers) >= layers;
  }
  std::int64_t room = 0;
  std::vector<int> lost;
  for (const std::int64_t free_bytes : bytes) {
    const int middle = room_of(memory, free_bytes + more, false, layers);
    const int end = room_of(memory, free_bytes + more, true, layers);
    if (middle == 0) {
      return false;
    }
    room += middle;
    if (end > 0) {
      lost.push_back(middle - end);
    }
  }
  if (lost.size() < 2 || std::ssize(bytes) > layers) {
    return false;
  }
  std::nth_element(lost.begin(), lost.begin() + 1, lost.end());
  return room - lost[0] - lost[1] >= layers;
}

// Gives a layer to each stage with room, again and again until none is left. Nothing if a stage
// gets none or the layers do not fit.
std::optional<std::vector<int>> fill(std::span<const int> room, int layers) {
  std::vector<int> counts(room.size(), 0);
  for (int round = 0; layers > 0; ++round) {
    const int before = layers;
    for (std::size_t stage = 0; stage < room.size() && layers > 0; ++stage) {
      if (room[stage] > round) {
        ++counts[stage];
        --layers;
      }
    }
    if (layers == before) {
      return std::nullopt;
    }
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

// Stages with equal room, of which two may become ends: the one with the first devices becomes the
// first stage, the one with the last devices the last stage. With other ends of equal room, stages
// are as even and their devices in worse order.
struct EqualRooms {
  std::size_t first = 0;
  std::size_t last = 0;
};

// Finds stages with equal room, which are neighbours because rooms are sorted by memory.
std::vector<EqualRooms> equal_rooms(std::span<const DeviceRoom> rooms) {
  std::vector<EqualRooms> equal;
  for (std::size_t stage = 0; stage < rooms.size(); ++stage) {
    const DeviceRoom& room = rooms[stage];
    if (stage == 0 || room.middle != rooms[stage - 1].middle || room.end != rooms[stage - 1].end) {
      equal.push_back({stage, stage});
      continue;
    }
    EqualRooms& same = equal.back();
    if (room.devices.front() < rooms[same.first].devices.front()) {
      same.first = stage;
    }
    if (room.devices.front() > rooms[same.last].devices.front()) {
      same.last = stage;
    }
  }
  return equal;
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
    if (fit_stages(stage_bytes(trial, states, memory.tensor), 0, memory, layers)) {
      chosen.push_back(order[next]);
    }
  }
  return chosen.size() == wanted ? divide_among(chosen, states, memory, layers) : std::nullopt;
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
  if (!fit_stages(stage_bytes(devices, states, memory.tensor), 0, memory, layers)) {
    return std::nullopt;
  }
  const std::vector<EqualRooms> equal = equal_rooms(rooms);
  std::optional<Placement> best;
  for (const EqualRooms& begin : equal) {
    for (const EqualRooms& end : equal) {
      if (begin.first == end.last && rooms.size() > 1) {
        continue;
      }
      auto placement = with_ends(rooms, begin.first, end.last, layers);
      if (placement && better(*placement, best)) {
        best = std::move(placement);
      }
    }
  }
  return best;
}

bool fits_devices(const Configuration& configuration, std::span<const DeviceState> states,
                  const ConfigurationMemory& memory, int layers) {
  const std::vector<int> devices = all_devices(states);
  if (std::ssize(devices) < configuration.devices()) {
    return false;
  }
  std::vector<std::int64_t> bytes = stage_bytes(devices, states, memory.tensor);
  bytes.resize(static_cast<std::size_t>(configuration.stages));
  return fit_stages(bytes, 0, memory, layers);
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
  const std::vector<int> devices = all_devices(states);
  check(std::ssize(devices) >= configuration.devices(), "a configuration has enough devices");
  std::vector<std::int64_t> bytes = stage_bytes(devices, states, memory.tensor);
  bytes.resize(static_cast<std::size_t>(configuration.stages));
  const auto fits_with = [&](std::int64_t more) { return fit_stages(bytes, more, memory, layers); };
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

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "contract/configuration.h"
#include "cost/configuration_cost.h"

namespace protean {

// A device as placement sees it.
struct DeviceState {
  std::int64_t free_bytes = 0;
  double load = 0;    // share of the last two minutes in which it was busy (ModelLoad)
  bool lost = false;  // it has failed: nothing is placed on it
};

// Which devices a model goes to (iServe section 6).
enum class PlacementPolicy : std::uint8_t {
  kLeastLoaded,  // the least loaded devices with room
  kPacking,      // the most loaded devices with room
  kHybrid,  // the most loaded of those below theta; without room there, the least loaded others
};

// Reads "least-loaded", "packing" or "hybrid".
Result<PlacementPolicy> parse_placement_policy(std::string_view text);
std::string_view to_string(PlacementPolicy policy);

struct PlacementOptions {
  PlacementPolicy policy = PlacementPolicy::kHybrid;
  double theta = 0.2;  // argued in docs/simulated.md
};

// Where a configuration goes. `devices` are indices, stage after stage, TP devices of a stage
// together; stages have consecutive layers.
struct Placement {
  std::vector<int> devices;
  std::vector<int> stage_layers;  // at least 1 each
  friend bool operator==(const Placement&, const Placement&) = default;
};

// Divides `layers` layers among exactly these devices, of which there are as many as the
// configuration has. Stages are made of devices with similar free memory, and are as even as their
// memory allows. Nothing if the layers do not fit in any division.
std::optional<Placement> divide_among(std::span<const int> devices,
                                      std::span<const DeviceState> states,
                                      const ConfigurationMemory& memory, int layers);

// True if the configuration fits some devices: it then fits those with most free memory.
bool fits_devices(const Configuration& configuration, std::span<const DeviceState> states,
                  const ConfigurationMemory& memory, int layers);

// Returns the placement on the devices that the policy prefers: of all sets of devices that have
// room, the first one in the policy's order of devices. Nothing only if no set has room.
std::optional<Placement> place(const Configuration& configuration,
                               std::span<const DeviceState> states,
                               const ConfigurationMemory& memory, int layers,
                               const PlacementOptions& options);

// Returns the bytes that each device would need more for the configuration to fit; 0 if it fits.
std::int64_t missing_bytes(const Configuration& configuration, std::span<const DeviceState> states,
                           const ConfigurationMemory& memory, int layers);

}  // namespace protean

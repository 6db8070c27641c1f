#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/model_spec.h"
#include "cost/device_profile.h"
#include "cost/group_cost.h"
#include "host/machine.h"

namespace protean {

// Devices of one kind to simulate.
struct Cluster {
  std::string name;
  DeviceProfile profile;
  int devices = 1;
  std::int64_t memory_bytes = 0;          // of each device
  std::vector<std::int64_t> memory_each;  // if devices have unequal memory; empty: memory_bytes
  Transfer link;                          // between devices of different replicas
  int devices_on_link = 0;                // see GroupCost
  double swap_bytes_per_us = 0;           // to each device from host memory; 0: KV is not swapped
  // Devices of a replica or group divide the tokens of each sequence and hold all weights (sequence
  // parallelism), instead of shards of each layer.
  bool sequence = false;
  // Factors of the time that steps on 1, 2, 4 and 8 devices take.
  std::array<double, GroupCost::kDegrees> slowdown{1, 1, 1, 1};
  // The longest request that 1, 2, 4 and 8 devices serve; empty: what their KV cache holds.
  std::vector<int> longest_tokens;
};

// Reads devices with a built-in profile: "8xH20", or a TOML file with profile, devices, memory (a
// size, or a list with that of each device), link_us, link_bytes_per_us, link_devices, slowdown,
// longest, swap_bytes_per_us and sequence.
Result<Cluster> read_cluster(const std::string& text);

// Returns a machine with the cluster's memory and a processor for each device, for sizing.
Machine machine_of(const Cluster& cluster);

// Returns what steps cost on the cluster's devices, for layers at any of `layers`.
GroupCost group_cost(const Cluster& cluster, const ModelSpec& spec,
                     const std::vector<Precision>& layers, KvPrecision kv);

}  // namespace protean

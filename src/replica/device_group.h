#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "host/cpu_share.h"
#include "host/machine.h"

namespace protean {

// How a user divides devices among replicas of a model, and the model among the devices of each. A
// number of 0 is chosen.
struct GroupOptions {
  std::string devices = "auto";  // a number, or a TOML file that describes each device
  int replicas = 0;              // all alike; each has an equal number of the devices
  int tensor = 0;                // devices that share each layer
  int pipeline = 0;              // stages of consecutive layers
  int most_tensor = 0;           // shards of each component: the largest tensor degree ever
  bool keeps_attention = false;  // groups of replicas keep attention weights (Form)
  bool overlaps_kv = false;      // see WorkerOptions::moves_kv_early
  std::string stages;            // layers of each stage, such as "10,9,7,6"; empty: even
  bool on_nodes = false;         // each device is a NUMA node, with what is free there
  // Bytes of each device, and the file that says so; empty: what `devices` says.
  std::vector<std::int64_t> memory;
  std::string memory_file;

  // Returns the name of the file that gives devices their memory, if one does.
  const std::string& file() const { return memory.empty() ? devices : memory_file; }
};

// A device of a group and the CPUs that it computes on.
struct GroupDevice {
  CpuShare cpus;
  std::optional<std::int64_t> memory_bytes;  // nothing: its share of what is free
};

// The devices of all replicas, replica after replica, and how the devices of one replica divide the
// model.
struct DeviceGroup {
  std::vector<GroupDevice> devices;
  Division division;
  int shards = 1;
  bool keeps_attention = false;  // see GroupOptions
  bool on_nodes = false;         // see GroupOptions
  std::vector<std::string> warnings;
};

// Returns the form divided among the devices of one replica, which are numbered from 0.
Form divide(Form form, const DeviceGroup& group);

// Returns the options to try in turn until the model fits. If `options` name neither devices nor a
// division, each NUMA node is a device: a replica on each, else fewer of more devices each, and
// last one device over all nodes.
std::vector<GroupOptions> divisions_to_try(const GroupOptions& options,
                                           const ComputeOptions& compute, const Machine& machine);

// Returns the memory of each device: what is asked for, else an equal part of what is free, or with
// `on_nodes` its part of what is free on its node.
std::vector<std::int64_t> memory_of_devices(const DeviceGroup& group, const Machine& machine);

// Chooses the devices and the division: what the options say; where they leave it open, one
// replica, and TP over all devices of a replica if the KV heads divide among them, otherwise PP. If
// replicas of one device each are more than the CPUs, each computes on all CPUs with one thread.
// Fails with a message that names what would work.
Result<DeviceGroup> choose_group(const GroupOptions& asked, const ComputeOptions& compute,
                                 const ModelSpec& spec, const Machine& machine);

}  // namespace protean

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/model_spec.h"
#include "cost/device_profile.h"
#include "host/cpu_share.h"
#include "host/machine.h"

namespace protean {

// A device that a plan may use: one with a built-in profile, or a share of this machine.
struct PlannedDevice {
  std::optional<DeviceProfile> profile;
  CpuShare cpus;  // without a profile
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;
  double load = 0;  // share of the last two minutes in which it was busy
  double price_per_hour = 1;
  bool lost = false;  // it has failed, and takes no model
};

struct PlannedDevices {
  std::vector<PlannedDevice> devices;
  std::string name;          // such as "8xA6000" or the processor's
  std::string warning = {};  // empty: none
};

// Reads --devices: a number of devices of this machine, "8xA6000", or a TOML file. A file describes
// each [[device]] by profile, count, memory, free, load and price, or as `protean serve` reads it.
// A number divides `cpus`, a list such as 0-7, or all CPUs if it is empty.
Result<PlannedDevices> read_planned_devices(const std::string& text, const std::string& cpus,
                                            const ModelSpec& spec, const Machine& machine);

}  // namespace protean

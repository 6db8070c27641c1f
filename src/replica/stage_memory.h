#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "cost/stage_layers.h"
#include "replica/device_group.h"
#include "replica/sizing.h"

namespace protean {

// Returns the memory of each device of a replica if a file gives it to all devices, the devices of
// one replica have different memory, they form a pipeline, and replicas are alike; else nothing.
std::vector<std::int64_t> memory_of_stages(const DeviceGroup& group,
                                           const std::vector<DeviceSpec>& devices);

// Returns the least memory of a device of each replica, if a file gives it to all devices; else
// what all devices have, `alike`.
std::vector<std::int64_t> memory_of_replicas(const DeviceGroup& group,
                                             const std::vector<DeviceSpec>& devices,
                                             std::vector<std::int64_t> alike);

// Sizes each replica with `size_with`, which gives each device so much memory. The sizing becomes
// that of the replica with the fewest pages, with what each of the others has.
Status size_apart(const std::vector<std::int64_t>& memory,
                  const std::function<Status(std::int64_t memory_bytes, Sizing&)>& size_with,
                  Sizing& sizing);

// Returns the form with the layers of each stage that leave the most KV on devices with different
// numbers of pages, which `room` has for each device; the form itself if --stages, `stages`, names
// the layers, or if no layers leave any KV.
Form with_stages(const ModelSpec& spec, const DeviceGroup& group, const std::string& stages,
                 const StageRoom& room, Form form);

// Gives the devices of a group so many pages each, and returns the most of them.
std::int64_t give_pages(Form& form, const std::vector<std::int64_t>& pages);

}  // namespace protean

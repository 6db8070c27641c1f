#pragma once

#include <cstdint>

#include "base/result.h"
#include "contract/model_spec.h"
#include "replica/device_group.h"
#include "replica/model_options.h"
#include "replica/sizing.h"

namespace protean {

// Chooses the pages and KV blocks of `sizing`, whose devices and form are chosen but for the
// blocks. Every device gets as much as the one with the least memory allows; but if a file gives
// replicas different memory, those of each take what its least has, and if it gives the stages of a
// pipeline different memory, each takes its own, and the layers may be divided otherwise.
Status size_memory(const ModelOptions& options, const ModelSpec& spec, const Machine& machine,
                   const DeviceGroup& group, Sizing& sizing);

}  // namespace protean

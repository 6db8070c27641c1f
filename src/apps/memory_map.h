#pragma once

#include <string>

#include "contract/model_spec.h"
#include "replica/sizing.h"

namespace protean {

// Draws the pages of each device as a row of letters, one row for those that are alike in
// replicas, with what the device holds and how many pages each kind of component takes: lines for
// `protean inspect`.
std::string memory_map(const ModelSpec& spec, const Sizing& sizing);

}  // namespace protean

#pragma once

#include <string>

#include "contract/model_spec.h"
#include "replica/sizing.h"

namespace protean {

// Draws the pages of each device of a replica as a row of letters, with what the device holds and
// how many pages each kind of component takes: lines for `protean inspect`.
std::string memory_map(const ModelSpec& spec, const Sizing& sizing);

}  // namespace protean

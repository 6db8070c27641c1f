#pragma once

#include <cstdint>

#include "base/ids.h"

namespace protean {

using ReplicaId = Id<struct ReplicaTag, std::int32_t>;  // from 0, in the order of the fleet

}  // namespace protean

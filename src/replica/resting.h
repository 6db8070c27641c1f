#pragma once

#include "contract/morph.h"
#include "replica/replica.h"

namespace protean {

// Returns the options of replicas that begin in the form of quiet times that an intent gave engines
// with `options`, with the pages that it gave them. Their forms may change as before: no weights go
// above those of `options`, and devices may have as many pages again. Requires that forms may
// change.
ReplicaOptions resting_in(ReplicaOptions options, const FormWish& rest);

}  // namespace protean

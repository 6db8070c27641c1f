#pragma once

#include "contract/morph.h"
#include "replica/replica.h"

namespace protean {

// Returns the options of replicas that begin in the form of quiet times that an intent gave engines
// with `options`, with the pages that it gave them. Their forms may change as before: weights may
// have the precisions of `options` again, and devices as many pages. Requires that forms may
// change.
ReplicaOptions resting_in(ReplicaOptions options, const FormWish& rest);

}  // namespace protean

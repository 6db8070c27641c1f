#pragma once

#include "base/result.h"

namespace protean::cpu {

// Kernels use the best instructions of the processor. The environment variable PROTEAN_CPU limits
// them to amx, avx512, avx2 or portable: for comparisons and tests, and for processors that report
// instructions they cannot execute. It is read once, before main.

// Fails with kInvalidArgument if PROTEAN_CPU has another value, which limits nothing.
Status instruction_limit();

// Returns true if PROTEAN_CPU allows AMX.
bool may_use_amx();

}  // namespace protean::cpu

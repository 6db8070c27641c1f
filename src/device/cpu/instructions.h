#pragma once

#include "base/result.h"

namespace protean::cpu {

// Kernels use the best instructions that the processor has, unless PROTEAN_CPU in the environment
// says which at most: amx, avx512, avx2 or portable. It is read once, before main, so that whatever
// runs kernels heeds it: to compare, to test, and where a processor promises what it cannot do.

// kInvalidArgument: PROTEAN_CPU is something else; then nothing is forbidden.
Status instruction_limit();

// Whether AMX may be used if it is there.
bool may_use_amx();

}  // namespace protean::cpu

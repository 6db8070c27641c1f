#pragma once

namespace protean {

// Whether this machine multiplies integers (w8a8, w8a7, w4a8) faster than bf16. Vectors do. AMX
// may: its first call measures that for some milliseconds.
bool integers_are_faster();

// Whether integers of 8 bits are as fast as any: multiplied four by four, or by AMX.
bool eight_bits_are_fastest();

}  // namespace protean

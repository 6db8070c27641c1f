#pragma once

namespace protean {

// Returns true if this machine multiplies integers (w8a8, w8a7, w4a8) faster than bf16. Vectors do.
// With AMX, the first call measures it for some milliseconds.
bool integers_are_faster();

// Returns true if no narrower integers are faster than 8 bits: dot products of four, or AMX.
bool eight_bits_are_fastest();

}  // namespace protean

#pragma once

namespace protean::cpu {

// The dot instructions of AVX-512, which multiply several small numbers of a lane and add them to
// one sum. Both functions return false if AVX-512 is disabled (instructions.h).

// Returns true if the processor has VPDPBUSD: four products of bytes in a lane.
bool byte_dot_available();

// Returns true if VDPBF16PS, two products of bf16 in a lane, is twice as fast as f32. On cores of
// Intel it is half as fast, so this returns false.
bool bf16_dot_pays();

}  // namespace protean::cpu

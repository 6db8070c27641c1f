#pragma once

namespace protean::cpu {

// AVX-512's instructions that multiply several small numbers of a lane and add them to one sum:
// does the processor have them, and do kernels run with AVX-512 at all, which a test may forbid.

// VPDPBUSD: four bytes at once, four times as many products as f32 has.
bool byte_dot_available();

// VDPBF16PS: two bf16 at once, and twice as fast as f32. On Intel's cores it is half as fast as
// f32: there the answer is no.
bool bf16_dot_pays();

}  // namespace protean::cpu

#pragma once

#include <array>
#include <cstdint>

namespace protean {

// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). Computes
// random bits from counter and key alone, so that a draw has no state for a preemption to lose.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

// Returns a uniform number in [0, 1) of 53 bits for the token at `position` of a sequence with
// `seed`.
double uniform_draw(std::uint64_t seed, std::uint64_t position);

}  // namespace protean

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu/matmul.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// Work that shows the two limits of this machine against which kernels are measured. Uses random
// data, because a processor may be up to a third faster with zeros.

// Reads all of `memory` once on all threads. Returns a checksum, so that reads are not optimised
// away.
std::uint64_t read_memory(Team& team, std::span<const std::byte> memory);

// Where the operands of multiply-adds are: in L1, like those of a product, or (AMX only) in tiles,
// a limit that no product reaches.
enum class OperandsIn : std::uint8_t { kCache, kTiles };

struct MultiplyWork {
  double operations = 0;  // a multiply-add counts as two
  float checksum = 0;
};

// Run `rounds` rounds of multiply-adds on every thread: multiply_near() with bf16 for AMX and dot
// instructions and f32 for vectors, the other with 8-bit integers and AMX.
MultiplyWork multiply_near(Team& team, MatmulIsa isa, std::int64_t rounds,
                           OperandsIn operands = OperandsIn::kCache);
MultiplyWork multiply_int8_near(Team& team, std::int64_t rounds,
                                OperandsIn operands = OperandsIn::kCache);

}  // namespace protean::cpu

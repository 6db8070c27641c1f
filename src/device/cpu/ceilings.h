#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cpu/matmul.h"
#include "device/cpu/team.h"

namespace protean::cpu {

// The two limits of this machine that kernels are measured against, as work to be timed. Both work
// on random data: on zeros a processor runs up to a third faster, and no model is made of zeros.

// Reads all of `memory` once, with the whole team. Returns a checksum, so that it really does.
std::uint64_t read_memory(Team& team, std::span<const std::byte> memory);

// Where the operands of multiply-adds lie: in L1, as those of a product do, or, of AMX, in tiles
// alone, which no product reaches.
enum class OperandsIn : std::uint8_t { kCache, kTiles };

struct MultiplyWork {
  double operations = 0;  // a multiply-add is two
  float checksum = 0;
};

// Multiply-adds, `rounds` times on every thread of the team: bf16 with AMX or dot instructions, f32
// with vectors. The second multiplies integers of 8 bits with AMX.
MultiplyWork multiply_near(Team& team, MatmulUnit unit, std::int64_t rounds,
                           OperandsIn operands = OperandsIn::kCache);
MultiplyWork multiply_int8_near(Team& team, std::int64_t rounds,
                                OperandsIn operands = OperandsIn::kCache);

}  // namespace protean::cpu

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

// Multiply-adds on operands that never leave L1, `rounds` times on every thread of the team: bf16
// with AMX or dot instructions, f32 with vectors; integers of 8 bits with AMX, if asked for.
struct MultiplyWork {
  double operations = 0;  // a multiply-add is two
  float checksum = 0;
};
MultiplyWork multiply_in_cache(Team& team, MatmulUnit unit, std::int64_t rounds,
                               bool amx_int8 = false);

}  // namespace protean::cpu

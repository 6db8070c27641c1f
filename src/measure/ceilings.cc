#include "measure/ceilings.h"

#include <cstdint>
#include <cstring>
#include <random>

#include "device/cpu/ceilings.h"

namespace protean {
namespace {

void fill_with_noise(std::span<std::byte> memory) {
  std::minstd_rand random(7);
  for (std::size_t at = 0; at + 8 <= memory.size(); at += 8) {
    const std::uint64_t word = random() * 0x9E3779B97F4A7C15U;
    std::memcpy(memory.data() + at, &word, sizeof(word));
  }
}

}  // namespace

Ceilings measure_ceilings(cpu::Team& team, std::span<std::byte> memory, const Stopwatch& stopwatch,
                          int repeat) {
  // Long enough for a core to slow down to what it can keep up; a round of tiles is a tenth of one
  // of vectors.
  constexpr std::int64_t kVectorRounds = 20000, kTileRounds = 1000000;
  fill_with_noise(memory);
  volatile std::uint64_t seen = 0;  // or nobody would have to read
  const double read_s = median_s(stopwatch, repeat, [&] { seen = cpu::read_memory(team, memory); });
  const cpu::MatmulUnit unit = cpu::best_unit();
  const std::int64_t rounds = cpu::has_tiles(unit) ? kTileRounds : kVectorRounds;
  const auto operations_per_s = [&](bool amx_int8) {
    double operations = 0;
    const double multiply_s = median_s(stopwatch, repeat, [&] {
      const auto work = cpu::multiply_in_cache(team, unit, rounds, amx_int8);
      operations = work.operations;
      seen = static_cast<std::uint64_t>(work.checksum != 0);
    });
    return operations / multiply_s;
  };
  return {static_cast<double>(memory.size()) / read_s, operations_per_s(false),
          unit == cpu::MatmulUnit::kAmx ? operations_per_s(true) : 0};
}

std::string_view multiplier_name() {
  switch (cpu::best_unit()) {
    case cpu::MatmulUnit::kAmx:
      return "AMX bf16";
    case cpu::MatmulUnit::kDot:
      return "AVX-512 bf16";
    default:
      return "vector f32";
  }
}

}  // namespace protean

#include "measure/ceilings.h"

#include <fmt/format.h>

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
  // Runs are long enough for a core to reach the clock speed that it sustains.
  constexpr std::int64_t kVectorRounds = 20000, kTileRounds = 125000;
  fill_with_noise(memory);
  volatile std::uint64_t seen = 0;  // keeps the compiler from removing the reads
  const double read_s = median_s(stopwatch, repeat, [&] { seen = cpu::read_memory(team, memory); });
  const auto per_s = [&](const auto& multiply) {
    double operations = 0;
    const double multiply_s = median_s(stopwatch, repeat, [&] {
      const cpu::MultiplyWork work = multiply();
      operations = work.operations;
      seen = static_cast<std::uint64_t>(work.checksum != 0);
    });
    return operations / multiply_s;
  };
  Ceilings ceilings{.read_bytes_per_s = static_cast<double>(memory.size()) / read_s};
  const cpu::MatmulIsa isa = cpu::best_isa();
  if (!cpu::has_tiles(isa)) {
    ceilings.operations_per_s = per_s([&] { return cpu::multiply_near(team, isa, kVectorRounds); });
    return ceilings;
  }
  const auto tiles_per_s = [&](cpu::OperandsIn operands) {
    return per_s([&] { return cpu::multiply_near(team, isa, kTileRounds, operands); });
  };
  const auto int8_per_s = [&](cpu::OperandsIn operands) {
    return per_s([&] { return cpu::multiply_int8_near(team, kTileRounds, operands); });
  };
  ceilings.operations_per_s = tiles_per_s(cpu::OperandsIn::kCache);
  ceilings.int8_operations_per_s = int8_per_s(cpu::OperandsIn::kCache);
  ceilings.tile_operations_per_s = tiles_per_s(cpu::OperandsIn::kTiles);
  ceilings.tile_int8_operations_per_s = int8_per_s(cpu::OperandsIn::kTiles);
  return ceilings;
}

std::string_view multiplier_name() {
  switch (cpu::best_isa()) {
    case cpu::MatmulIsa::kAmx:
      return "AMX bf16";
    case cpu::MatmulIsa::kDot:
      return "AVX-512 bf16";
    default:
      return "vector f32";
  }
}

std::string to_text(const Ceilings& ceilings) {
  std::string text =
      fmt::format("{}: reads {:.1f} GB/s, multiplies {:.0f} GFLOP/s", multiplier_name(),
                  ceilings.read_bytes_per_s * 1e-9, ceilings.operations_per_s * 1e-9);
  if (ceilings.int8_operations_per_s > 0) {
    text += fmt::format(
        " and {:.0f} int8 GOP/s with tiles loaded from L1 ({:.0f} and {:.0f} without loads)",
        ceilings.int8_operations_per_s * 1e-9, ceilings.tile_operations_per_s * 1e-9,
        ceilings.tile_int8_operations_per_s * 1e-9);
  }
  return text;
}

}  // namespace protean

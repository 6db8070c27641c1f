#include "worker/philox.h"

namespace protean {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(first)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return counter;
}

double uniform_draw(std::uint64_t seed, std::uint64_t position) {
  const auto bits = philox4x32(
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t both = (std::uint64_t{bits[0]} << 32) | bits[1];
  return static_cast<double>(both >> 11) * 0x1.0p-53;
}

}  // namespace protean

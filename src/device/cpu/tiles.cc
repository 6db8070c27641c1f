#include "device/cpu/tiles.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "device/cpu/bf16.h"
#include "device/cpu/instructions.h"

#if HWY_ARCH_X86_64 && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace protean::cpu {
namespace {

// Returns 0 for denormals. Both operands and results are flushed.
float flushed(float value) {
  return std::abs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}

constexpr int kColumns = kTileBytes / 4;
constexpr int kPairs = kTileInputs / 2;

// A row of A or B: 16 pairs of inputs, or one pair for each of 16 columns.
struct PairRow {
  float first[16];
  float second[16];
  // True if products of these numbers are exact in f32. Then a multiplication and an addition give
  // the same bits as a fused operation, and are much faster if that is a library function.
  bool moderate = true;

  void load(const std::byte* from) {
    for (int i = 0; i < 16; ++i) {
      std::uint16_t bits[2];
      std::memcpy(bits, from + std::ptrdiff_t{i} * 4, sizeof(bits));
      first[i] = flushed(float_from(bits[0]));
      second[i] = flushed(float_from(bits[1]));
      moderate = moderate && is_moderate(first[i]) && is_moderate(second[i]);
    }
  }
  static bool is_moderate(float value) {
    return value == 0 || (std::abs(value) > 0x1p-60f && std::abs(value) < 0x1p60f);
  }
};

void add_products(float factor, const float* values, bool moderate, float* sums) {
  if (moderate) {
    for (int column = 0; column < kColumns; ++column) {
      sums[column] = flushed(sums[column] + factor * values[column]);
    }
    return;
  }
  for (int column = 0; column < kColumns; ++column) {
    sums[column] = flushed(std::fma(factor, values[column], sums[column]));
  }
}

#if HWY_ARCH_X86_64 && defined(__linux__)
bool processor_has_amx() {
  constexpr unsigned kOsSavesState = 1U << 27;                               // leaf 1, ECX
  constexpr unsigned kBf16 = 1U << 22, kTiles = 1U << 24, kInt8 = 1U << 25;  // leaf 7, EDX
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsSavesState) == 0) {
    return false;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) {
    return false;
  }
  return (d & kBf16) != 0 && (d & kTiles) != 0 && (d & kInt8) != 0;
}

bool ask_for_tiles() {
  constexpr unsigned kTileState = 3U << 17;                    // XCR0: configuration and data
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // for arch_prctl
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Returns the sums of one product of bf16 and of one of bytes. The bf16 are small integers times
// powers of `base`. If it is 1, sums are exact, so that a processor which adds in another order
// than the manual gives the same.
template <class Tiles>
std::array<std::uint32_t, 512> sample_products(Tiles tiles, float base) {
  alignas(64) std::uint16_t left[16 * 32];
  alignas(64) std::uint16_t right[16 * 32];
  for (int i = 0; i < 16 * 32; ++i) {
    left[i] = bf16_from(static_cast<float>(i * 37 % 17 - 8) * std::pow(base, i % 11));
    right[i] = bf16_from(static_cast<float>(i * 53 % 15 - 7) * std::pow(base, i % 13));
  }
  std::array<std::uint32_t, 512> sums{};
  tiles.configure();
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template load<4>(left, kTileBytes);
  tiles.template load<6>(right, kTileBytes);
  tiles.template multiply<0, 4, 6>();
  tiles.template multiply<0, 4, 6>();  // to a sum that is not 0
  tiles.template multiply_int8<1, 4, 6>();
  tiles.template store<0>(sums.data(), kTileBytes);
  tiles.template store<1>(sums.data() + 256, kTileBytes);
  tiles.release();
  return sums;
}

// Returns true if products are those of the emulation. Some virtual machines and emulators report
// AMX but compute wrong sums.
bool multiplies_like_manual(float base) {
  return sample_products(AmxTiles(), base) == sample_products(EmulatedTiles(), base);
}
#endif

}  // namespace

bool amx_promised() {
#if HWY_ARCH_X86_64 && defined(__linux__)
  static const bool promised = may_use_amx() && processor_has_amx() && ask_for_tiles();
  return promised;
#else
  return false;
#endif
}

bool amx_available() {
#if HWY_ARCH_X86_64 && defined(__linux__)
  static const bool available = amx_promised() && multiplies_like_manual(1.0f);
  return available;
#else
  return false;
#endif
}

bool amx_rounds_as_documented() {
#if HWY_ARCH_X86_64 && defined(__linux__)
  static const bool rounds = amx_available() && multiplies_like_manual(1.7f);
  return rounds;
#else
  return false;
#endif
}

void EmulatedTiles::load_tile(Tile& tile, const void* from, std::int64_t row_bytes) {
  for (int row = 0; row < kTileRows16; ++row) {
    std::memcpy(tile.data() + row * kTileBytes,
                static_cast<const std::byte*>(from) + row * row_bytes, kTileBytes);
  }
}

void EmulatedTiles::store_tile(const Tile& tile, void* to, std::int64_t row_bytes) {
  for (int row = 0; row < kTileRows16; ++row) {
    std::memcpy(static_cast<std::byte*>(to) + row * row_bytes, tile.data() + row * kTileBytes,
                kTileBytes);
  }
}

// Follows the definition of TDPBF16PS in Intel's manual: adds even and odd inputs separately, then
// both sums, then C. Every addition rounds to nearest even.
void EmulatedTiles::multiply_tiles(Tile& c, const Tile& a, const Tile& b) {
  PairRow right[kPairs];
  for (int pair = 0; pair < kPairs; ++pair) {
    right[pair].load(b.data() + std::ptrdiff_t{pair} * kTileBytes);
  }
  for (int row = 0; row < kTileRows16; ++row) {
    const std::ptrdiff_t at = std::ptrdiff_t{row} * kTileBytes;
    PairRow left;
    left.load(a.data() + at);
    float first[kColumns] = {}, second[kColumns] = {};
    for (int pair = 0; pair < kPairs; ++pair) {
      const bool moderate = left.moderate && right[pair].moderate;
      add_products(left.first[pair], right[pair].first, moderate, first);
      add_products(left.second[pair], right[pair].second, moderate, second);
    }
    float sums[kColumns];
    std::memcpy(sums, c.data() + at, sizeof(sums));
    for (int column = 0; column < kColumns; ++column) {
      sums[column] = flushed(flushed(sums[column]) + flushed(first[column] + second[column]));
    }
    std::memcpy(c.data() + at, sums, sizeof(sums));
  }
}

// Adds four products of bytes to each sum, modulo 2^32.
void EmulatedTiles::multiply_int8_tiles(Tile& c, const Tile& a, const Tile& b) {
  constexpr int kColumns = kTileBytes / 4;
  for (int row = 0; row < kTileRows16; ++row) {
    std::uint32_t sums[kColumns];
    std::memcpy(sums, c.data() + row * kTileBytes, kTileBytes);
    for (int i = 0; i < kTileInt8s; ++i) {
      const auto left = static_cast<std::int8_t>(a[row * kTileBytes + i]);
      const std::byte* const fours = b.data() + i / 4 * kTileBytes + i % 4;
      for (int column = 0; column < kColumns; ++column) {
        const auto right = static_cast<std::int8_t>(fours[column * 4]);
        sums[column] += static_cast<std::uint32_t>(left * right);
      }
    }
    std::memcpy(c.data() + row * kTileBytes, sums, kTileBytes);
  }
}

}  // namespace protean::cpu

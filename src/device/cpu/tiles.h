#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "hwy/detect_compiler_arch.h"

namespace protean::cpu {

// The eight AMX tiles of a thread, each with 16 rows of 64 bytes. Two classes have the same
// operations: AmxTiles uses the processor, EmulatedTiles follows Intel's manual, for tests on any
// processor.
constexpr int kTileRows16 = 16;
constexpr int kTileBytes = 64;   // bytes of a row
constexpr int kTileInputs = 32;  // bf16 in a row of A; rows of B have pairs of inputs
constexpr int kTileInt8s = 64;   // bytes in a row of A; rows of B have four inputs of each output

enum class TileElement : std::uint8_t { kBf16, kInt8 };

// Returns true if the processor, the system and PROTEAN_CPU allow AMX with bf16 and int8. The first
// call requests the tile state from the system, for all threads.
bool amx_promised();

// Returns true if AMX is allowed and products of small integers are correct, which are exact in any
// order of additions. A processor may add in another order than the manual if it is always the
// same.
bool amx_available();

// Returns true if AMX is available and sums of bf16 products are rounded like the manual says, so
// that vectors can compute the same bits.
bool amx_rounds_as_documented();

class EmulatedTiles {
 public:
  void configure() { tiles_ = {}; }
  void release() {}

  template <int kTile>
  void zero() {
    tiles_[kTile] = {};
  }
  template <int kTile>
  void load(const void* from, std::int64_t row_bytes) {
    load_tile(tiles_[kTile], from, row_bytes);
  }
  template <int kTile>
  void load_once(const void* from, std::int64_t row_bytes) {
    load<kTile>(from, row_bytes);
  }
  template <int kTile>
  void store(void* to, std::int64_t row_bytes) const {
    store_tile(tiles_[kTile], to, row_bytes);
  }
  // Computes C += A B over 32 inputs, like TDPBF16PS.
  template <int kC, int kA, int kB>
  void multiply() {
    multiply_tiles(tiles_[kC], tiles_[kA], tiles_[kB]);
  }
  // Computes C += A B over 64 signed bytes with 32-bit sums, like TDPBSSD.
  template <int kC, int kA, int kB>
  void multiply_int8() {
    multiply_int8_tiles(tiles_[kC], tiles_[kA], tiles_[kB]);
  }

 private:
  using Tile = std::array<std::byte, std::size_t{kTileRows16} * kTileBytes>;
  static void load_tile(Tile& tile, const void* from, std::int64_t row_bytes);
  static void store_tile(const Tile& tile, void* to, std::int64_t row_bytes);
  static void multiply_tiles(Tile& c, const Tile& a, const Tile& b);
  static void multiply_int8_tiles(Tile& c, const Tile& a, const Tile& b);

  std::array<Tile, 8> tiles_;
};

#if HWY_ARCH_X86_64
// The tiles of the processor. Uses inline assembly, so that the code around it needs no compiler
// flags. Call configure() before the first operation of a task and release() after the last, since
// tiles in use make context switches slower.
class AmxTiles {
 public:
  void configure() {
    // The whole configuration is an operand. The intrinsic of GCC 12 names only its first bytes, so
    // that the compiler removes the stores to the others.
    struct alignas(64) Configuration {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } configuration;
    static_assert(sizeof(Configuration) == 64);
    for (int tile = 0; tile < 8; ++tile) {
      configuration.row_bytes[tile] = kTileBytes;
      configuration.rows[tile] = kTileRows16;
    }
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  void release() { asm volatile("tilerelease"); }

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  void load(const void* from, std::int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(from), "r"(row_bytes), "i"(kTile)
                 : "memory");
  }
  // Loads data that are not read again soon, so that they use little of L1.
  template <int kTile>
  void load_once(const void* from, std::int64_t row_bytes) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(from), "r"(row_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  void store(void* to, std::int64_t row_bytes) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(to), "r"(row_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kC, int kA, int kB>
  void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  void multiply_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};
#endif

}  // namespace protean::cpu

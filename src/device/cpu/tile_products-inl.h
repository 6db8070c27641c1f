// Products of tiles for all kernels: one or two tiles of rows times two tiles of columns, which are
// a panel of a matmul. Tiles 0 to 3 hold sums, 4 and 5 rows, 6 and 7 columns. Compiled once for
// each instruction set, because functions are only inlined into callers compiled for the same one.

#if defined(PROTEAN_DEVICE_CPU_TILE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_TILE_PRODUCTS_INL_H_
#undef PROTEAN_DEVICE_CPU_TILE_PRODUCTS_INL_H_
#else
#define PROTEAN_DEVICE_CPU_TILE_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/packed_matrix.h"
#include "device/cpu/tiles.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr std::int64_t kTileMemory = std::int64_t{kTileRows16} * kTileBytes;
// The distance between rows of a weight tile, each of which has two or four inputs of a panel's
// outputs.
constexpr std::int64_t kPanelRowBytes = std::int64_t{PackedMatrix::kPanel} * 4;
// The bytes of a panel that are multiplied with one tile of rows.
constexpr std::int64_t kPanelStepBytes = kTileRows16 * kPanelRowBytes;

// Steps of 64 bytes of every row. The defaults are the layout of matmuls, in which the tile of a
// step is contiguous and steps follow each other.
struct TileSteps {
  const void* x = nullptr;        // first row tile
  std::int64_t x_stride = 0;      // bytes to the second row tile
  const void* weights = nullptr;  // [16][32] words in each step
  std::int64_t steps = 0;
  std::int64_t x_row_bytes = kTileBytes;  // distance between rows
  std::int64_t x_step_bytes = kTileMemory;
  std::int64_t weight_row_bytes = kPanelRowBytes;

  void advance() {
    x = static_cast<const std::byte*>(x) + x_step_bytes;
    weights = static_cast<const std::byte*>(weights) + kTileRows16 * weight_row_bytes;
    --steps;
  }
};

// Runs a task with the tiles of the processor or with emulated ones.
template <class Task>
void with_tiles(bool emulated, const Task& task) {
  const auto run = [&](auto tiles) {
    tiles.configure();
    task(tiles);
    tiles.release();
  };
  if (emulated) {
    return run(EmulatedTiles());
  }
#if HWY_ARCH_X86_64
  run(AmxTiles());
#else
  check(false, "AMX is a feature of x86");
#endif
}

template <TileElement kElement, int kC, int kA, int kB, class Tiles>
void add_product(Tiles& tiles) {
  if constexpr (kElement == TileElement::kBf16) {
    tiles.template multiply<kC, kA, kB>();
  } else {
    tiles.template multiply_int8<kC, kA, kB>();
  }
}

template <class Tiles>
void zero_sums(Tiles& tiles) {
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
}

// Multiplies one step. Calls before(number) for each tile of sums just before its first product.
template <bool kTwo, TileElement kElement, class Tiles, class Before>
HWY_INLINE void multiply_step(Tiles& tiles, const TileSteps& at, const Before& before) {
  const auto* const x = static_cast<const std::byte*>(at.x);
  const auto* const weights = static_cast<const std::byte*>(at.weights);
  tiles.template load<6>(weights, at.weight_row_bytes);
  tiles.template load_once<4>(x, at.x_row_bytes);
  before(std::integral_constant<int, 0>());
  add_product<kElement, 0, 4, 6>(tiles);
  tiles.template load<7>(weights + kTileBytes, at.weight_row_bytes);
  before(std::integral_constant<int, 1>());
  add_product<kElement, 1, 4, 7>(tiles);
  if constexpr (kTwo) {
    tiles.template load_once<5>(x + at.x_stride, at.x_row_bytes);
    before(std::integral_constant<int, 2>());
    add_product<kElement, 2, 5, 6>(tiles);
    before(std::integral_constant<int, 3>());
    add_product<kElement, 3, 5, 7>(tiles);
  }
}

// Adds all steps to the sums. Calls `between` after each: other instructions overlap with tiles
// only if they are close to them.
template <bool kTwo, TileElement kElement, class Tiles, class Between>
HWY_INLINE void multiply_steps(Tiles& tiles, TileSteps at, const Between& between) {
  for (; at.steps > 0; at.advance()) {
    multiply_step<kTwo, kElement>(tiles, at, [](auto /*tile*/) HWY_ATTR {});
    between();
  }
}

// Loads sums from rows of 32 columns.
template <bool kTwo, class Tiles>
void load_tiles(Tiles& tiles, const void* sums, std::int64_t row_bytes) {
  const auto* const from = static_cast<const std::byte*>(sums);
  tiles.template load<0>(from, row_bytes);
  tiles.template load<1>(from + kTileBytes, row_bytes);
  if constexpr (kTwo) {
    tiles.template load<2>(from + kTileRows16 * row_bytes, row_bytes);
    tiles.template load<3>(from + kTileRows16 * row_bytes + kTileBytes, row_bytes);
  }
}

// Stores sums to rows of 32 columns.
template <bool kTwo, class Tiles>
void store_tiles(const Tiles& tiles, void* sums, std::int64_t row_bytes) {
  auto* const to = static_cast<std::byte*>(sums);
  tiles.template store<0>(to, row_bytes);
  tiles.template store<1>(to + kTileBytes, row_bytes);
  if constexpr (kTwo) {
    tiles.template store<2>(to + kTileRows16 * row_bytes, row_bytes);
    tiles.template store<3>(to + kTileRows16 * row_bytes + kTileBytes, row_bytes);
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

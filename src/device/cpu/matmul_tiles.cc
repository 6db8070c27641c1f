#include "device/cpu/matmul_tiles.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/tile_products.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/finish-inl.h"
#include "device/cpu/weight_lines-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Inputs multiplied before the next panel: a panel's part of them stays in L1, that of 256 rows in
// L2. Of few rows more inputs fit, and long runs of a panel stream better; each run is still
// multiplied kTiledChunk by kTiledChunk, since so much is unpacked at once.
constexpr std::int64_t kTiledChunk = 512;
constexpr std::int64_t kFewRowsChunk = 4096;
constexpr int kFewRows = 2 * kTileRows16;

// What a part needs for as long as it runs; 550 KiB of stack.
struct TiledBuffers {
  alignas(64) float sums[kMaxTiledRows * kMaxTiledPanels * kPanel];
  alignas(64) std::uint16_t weights[kTiledChunk * kPanel];  // of one panel, as bf16 is packed
};

template <class Lines, int... j>
HWY_INLINE void round_weights(const std::byte* line, const Vec (&grid)[2], std::uint32_t* to,
                              std::integer_sequence<int, j...> /*inputs*/) {
  const Words words;
  const Floats floats;
  const Vec table = Lines::table();
  Vec weights[sizeof...(j)];
  ((weights[j] =
        round_bf16(floats, hn::MulAdd(grid[0], Lines::template value<j>(line, table), grid[1]))),
   ...);
  HWY_UNROLL(16)
  for (std::size_t pair = 0; pair < sizeof...(j) / 2; ++pair) {
    const auto even = hn::ShiftRight<16>(hn::BitCast(words, weights[2 * pair]));
    const auto odd = hn::BitCast(words, weights[2 * pair + 1]);
    hn::StoreU(hn::Or(even, odd), words, to + pair * kPanel);
  }
}

// A group of a panel as bf16 [inputs / 2][32][2]: scale * code + offset, rounded to nearest even.
template <class Lines>
void unpack_group(const std::byte* group, std::int64_t scale_bytes, std::int64_t inputs,
                  std::uint16_t* out) {
  const bool offsets = scale_bytes > kPanel * 2;
  for (int v = 0; v < kPanelVecs; ++v) {
    const std::byte* const scales = group + std::ptrdiff_t{v} * kLanes * 2;
    const Vec grid[2] = {load_scales(scales), offsets
                                                  ? load_scales(scales + std::ptrdiff_t{kPanel} * 2)
                                                  : hn::Zero(Floats())};
    const std::byte* line = group + scale_bytes + std::ptrdiff_t{v} * kLanes * Lines::kOutputBytes;
    auto* to = reinterpret_cast<std::uint32_t*>(out) + std::ptrdiff_t{v} * kLanes;
    for (std::int64_t i = 0; i < inputs; i += Lines::kInputs) {
      round_weights<Lines>(line, grid, to, std::make_integer_sequence<int, Lines::kInputs>());
      line += Lines::kBytes;
      to += Lines::kInputs / 2 * kPanel;
    }
  }
}

// Inputs [first, first + inputs) of a panel as tiles can be loaded from them, in place for bf16.
inline const std::uint16_t* tile_weights(const PackedMatrix& weights, std::int64_t panel,
                                         std::int64_t first, std::int64_t inputs,
                                         std::uint16_t* buffer) {
  const std::byte* from = weights.data + panel * weights.panel_bytes();
  if (weights.format.kind == WeightKind::kBf16) {
    return reinterpret_cast<const std::uint16_t*>(from) + first * kPanel;
  }
  const std::int64_t group = weights.format.group;
  from += first / group * weights.group_bytes();
  for (std::int64_t i = 0; i < inputs; i += group, from += weights.group_bytes()) {
    const std::int64_t count = std::min(group, inputs - i);
    std::uint16_t* const to = buffer + i * kPanel;
    switch (weights.format.kind) {
      case WeightKind::kW8:
        unpack_group<W8Lines>(from, weights.scale_bytes(), count, to);
        break;
      case WeightKind::kW4:
        unpack_group<W4Lines>(from, weights.scale_bytes(), count, to);
        break;
      default:
        unpack_group<W3Lines>(from, weights.scale_bytes(), count, to);
    }
  }
  return buffer;
}

// One or two tiles of rows times a panel, two tiles of outputs, over a chunk of inputs.
struct TiledBlock {
  TileSteps from;
  float* sums = nullptr;
  std::int64_t row_bytes = 0;  // of sums
  bool continues = false;      // sums of earlier inputs
};

template <bool kTwo, class Tiles>
void multiply_tiled_block(Tiles& tiles, const TiledBlock& block) {
  if (block.continues) {
    float* const lower = block.sums + kTileRows16 * block.row_bytes / 4;
    constexpr int kColumns = kPanel / 2;
    tiles.template load<0>(block.sums, block.row_bytes);
    tiles.template load<1>(block.sums + kColumns, block.row_bytes);
    if constexpr (kTwo) {
      tiles.template load<2>(lower, block.row_bytes);
      tiles.template load<3>(lower + kColumns, block.row_bytes);
    }
  } else {
    zero_sums(tiles);
  }
  multiply_steps<kTwo, TileElement::kBf16>(tiles, block.from, [] {});
  store_tiles<kTwo>(tiles, block.sums, block.row_bytes);
}

// Inputs [first, end) of a part's rows.
struct TiledInputs {
  const MatmulRows* x = nullptr;
  const MatmulPart* part = nullptr;
  std::int64_t first = 0;
  std::int64_t end = 0;
};

// A panel of the matrix and where its sums go.
struct PanelSums {
  std::int64_t panel = 0;
  float* sums = nullptr;
  std::int64_t columns = 0;  // from one row of sums to the next
};

template <class Tiles>
void multiply_panel(const PackedMatrix& weights, const TiledInputs& inputs, const PanelSums& to,
                    std::uint16_t* unpacked, Tiles& tiles) {
  const std::int64_t tile_words = kTileRows16 * inputs.x->row_words();
  const std::uint32_t* const x = inputs.x->words + inputs.part->first_row * inputs.x->row_words();
  const int row_tiles = ceil_div(inputs.part->rows, kTileRows16);
  for (std::int64_t first = inputs.first; first < inputs.end; first += kTiledChunk) {
    const std::int64_t steps =
        ceil_div<std::int64_t>(std::min(kTiledChunk, inputs.end - first), kTileInputs);
    TiledBlock block{
        .from = {.x_stride = tile_words * 4,
                 .weights = tile_weights(weights, to.panel, first, steps * kTileInputs, unpacked),
                 .steps = steps},
        .row_bytes = to.columns * 4,
        .continues = first > 0};
    for (int tile = 0; tile < row_tiles; tile += 2) {
      block.from.x = x + tile * tile_words + first / kTileInputs * kTileMemory / 4;
      block.sums = to.sums + tile * kTileRows16 * to.columns;
      if (tile + 1 < row_tiles) {
        multiply_tiled_block<true>(tiles, block);
      } else {
        multiply_tiled_block<false>(tiles, block);
      }
    }
  }
}

template <class Tiles>
void multiply_tiled_part(const MatmulOperands& operands, const MatmulPart& part, Tiles& tiles) {
  TiledBuffers buffers;
  const PackedMatrix& weights = *operands.weights;
  const std::int64_t chunk = part.rows <= kFewRows ? kFewRowsChunk : kTiledChunk;
  tiles.configure();
  for (std::int64_t first = 0; first < weights.inputs; first += chunk) {
    const TiledInputs inputs{operands.x, &part, first, std::min(first + chunk, weights.inputs)};
    for (int panel = 0; panel < part.panels; ++panel) {
      const PanelSums to{part.first_panel + panel, buffers.sums + std::ptrdiff_t{panel} * kPanel,
                         part.columns()};
      multiply_panel(weights, inputs, to, buffers.weights, tiles);
    }
  }
  tiles.release();
  finish_part(operands, part, buffers.sums);
}

void multiply_tiled_here(const MatmulOperands& operands, const MatmulPart& part, bool emulated) {
  if (emulated) {
    EmulatedTiles tiles;
    return multiply_tiled_part(operands, part, tiles);
  }
#if HWY_ARCH_X86_64
  AmxTiles tiles;
  multiply_tiled_part(operands, part, tiles);
#else
  check(false, "AMX is a feature of x86");
#endif
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_tiled_here);

void multiply_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated) {
  check(operands.weights->format.kind != WeightKind::kF32, "tiles have no f32");
  check(part.rows <= kMaxTiledRows && part.panels <= kMaxTiledPanels, "a part fits its buffers");
  check(part.first_row % kTileRows16 == 0, "a part begins with a row tile");
  HWY_DYNAMIC_DISPATCH(multiply_tiled_here)(operands, part, emulated);
}

}  // namespace protean::cpu
#endif

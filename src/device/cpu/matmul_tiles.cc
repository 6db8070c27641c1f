#include "device/cpu/matmul_tiles.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/tile_products.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/finish-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr int kPanel = PackedMatrix::kPanel;

// Inputs multiplied before the next panel: a panel's part of them stays in L1, that of 256 rows in
// L2. Of few rows more inputs fit, and long runs of a panel stream better; each run is still
// multiplied kTiledChunk by kTiledChunk.
constexpr std::int64_t kTiledChunk = 512;
constexpr std::int64_t kFewRowsChunk = 4096;
constexpr int kFewRows = 2 * kTileRows16;

// What a part needs for as long as it runs; half a MiB of stack.
struct TiledBuffers {
  alignas(64) float sums[kMaxTiledRows * kMaxTiledPanels * kPanel];
};

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
                    Tiles& tiles) {
  const auto* const panel =
      reinterpret_cast<const std::uint16_t*>(weights.data + to.panel * weights.panel_bytes());
  const std::int64_t tile_words = kTileRows16 * inputs.x->row_words();
  const std::uint32_t* const x = inputs.x->words + inputs.part->first_row * inputs.x->row_words();
  const int row_tiles = ceil_div(inputs.part->rows, kTileRows16);
  for (std::int64_t first = inputs.first; first < inputs.end; first += kTiledChunk) {
    const std::int64_t steps =
        ceil_div<std::int64_t>(std::min(kTiledChunk, inputs.end - first), kTileInputs);
    TiledBlock block{
        .from = {.x_stride = tile_words * 4, .weights = panel + first * kPanel, .steps = steps},
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
      multiply_panel(weights, inputs, to, tiles);
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
  check(operands.weights->format.kind == WeightKind::kBf16, "codes have a product of their own");
  check(part.rows <= kMaxTiledRows && part.panels <= kMaxTiledPanels, "a part fits its buffers");
  check(part.first_row % kTileRows16 == 0, "a part begins with a row tile");
  HWY_DYNAMIC_DISPATCH(multiply_tiled_here)(operands, part, emulated);
}

}  // namespace protean::cpu
#endif

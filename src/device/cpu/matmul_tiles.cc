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
constexpr std::int64_t kTiledChunk = MatmulRows::kTileChunk;
constexpr std::int64_t kFewRowsChunk = 4096;
constexpr int kBlockRows = 2 * kTileRows16;
constexpr int kFewRows = kBlockRows;
// Few rows take weights nearly as fast as memory brings them, one line after another.
constexpr std::int64_t kFewRowsAheadBytes = 8192;

// What a part needs for as long as it runs; half a MiB of stack.
struct TiledBuffers {
  alignas(64) float sums[kMaxTiledPanels * kMaxTiledRows * kPanel];  // [panel][row][32]
};

// Inputs [first, end) of a panel, at most kTiledChunk.
struct TiledRun {
  int panel = 0;  // of the part
  std::int64_t first = 0;
  std::int64_t end = 0;
};

template <class Tiles>
class TiledPart {
 public:
  TiledPart(const MatmulOperands& operands, const MatmulPart& part, Tiles& tiles)
      : operands_(operands),
        x_(*operands.x),
        part_(part),
        tiles_(tiles),
        inputs_(operands.weights->padded_inputs()),
        panel_bytes_(operands.weights->panel_bytes()) {}

  void multiply() {
    const std::int64_t chunk = part_.rows <= kFewRows ? kFewRowsChunk : kTiledChunk;
    for (std::int64_t first = 0; first < inputs_; first += chunk) {
      const std::int64_t end = std::min(first + chunk, inputs_);
      for (int panel = 0; panel < part_.panels; ++panel) {
        for (std::int64_t from = first; from < end; from += kTiledChunk) {
          multiply_run({panel, from, std::min(from + kTiledChunk, end)});
        }
      }
    }
  }

 private:
  const std::byte* weights(int panel, std::int64_t input) const {
    return operands_.weights->data + (part_.first_panel + panel) * panel_bytes_ +
           input * kInputBytes;
  }

  // What is read next, while all rows are multiplied with a run.
  LinesAhead lines_after(const TiledRun& run) const {
    const std::int64_t steps = (run.end - run.first) / kStepInputs;
    const std::int64_t bytes = (run.end - run.first) * kInputBytes;
    if (part_.rows <= kFewRows) {
      return {weights(run.panel, run.first) + kFewRowsAheadBytes, bytes, steps};
    }
    const std::int64_t calls = steps * ceil_div(part_.rows, kBlockRows);
    if (run.panel + 1 < part_.panels) {
      return {weights(run.panel + 1, run.first), bytes, calls};
    }
    const std::int64_t end = std::min(run.end + kTiledChunk, inputs_);
    return {weights(0, run.end), (end - run.end) * kInputBytes, calls};
  }

  void multiply_run(const TiledRun& run) {
    LinesAhead ahead = lines_after(run);
    TileSteps from{.x = reinterpret_cast<const std::byte*>(x_.words) +
                        x_.tile_offset(part_.first_row, run.first),
                   .x_stride = x_.tile_stride(run.first),
                   .weights = weights(run.panel, run.first),
                   .steps = (run.end - run.first) / kStepInputs};
    for (int row = 0; row < part_.rows; row += kBlockRows) {
      const PanelRows out{part_.first_row + row, std::min(kBlockRows, part_.rows - row),
                          part_.first_panel + run.panel};
      float* const sums =
          buffers_.sums + (std::ptrdiff_t{run.panel} * kMaxTiledRows + row) * kPanel;
      const bool last = run.end == inputs_;
      if (last) {
        expect_rows(operands_, out);
      }
      if (out.rows > kTileRows16) {
        multiply_block<true>(from, run.first > 0, sums, ahead);
      } else {
        multiply_block<false>(from, run.first > 0, sums, ahead);
      }
      if (last) {
        finish_rows(operands_, out, sums, kPanel);  // from L1
      }
      from.x = static_cast<const std::byte*>(from.x) + 2 * from.x_stride;
    }
  }

  // One or two tiles of rows times a panel, two tiles of outputs; added to what there is.
  template <bool kTwo>
  void multiply_block(const TileSteps& from, bool continues, float* sums, LinesAhead& ahead) {
    if (continues) {
      load_tiles<kTwo>(tiles_, sums, kPanelRowBytes);
    } else {
      zero_sums(tiles_);
    }
    multiply_steps<kTwo, TileElement::kBf16>(tiles_, from, [&] { ahead.ask(); });
    store_tiles<kTwo>(tiles_, sums, kPanelRowBytes);
  }

  static constexpr std::int64_t kStepInputs = kTileInputs;
  static constexpr std::int64_t kInputBytes = std::int64_t{kPanel} * 2;

  const MatmulOperands& operands_;
  const MatmulRows& x_;
  const MatmulPart& part_;
  Tiles& tiles_;
  const std::int64_t inputs_, panel_bytes_;  // of the weights
  TiledBuffers buffers_;
};

void multiply_tiled_here(const MatmulOperands& operands, const MatmulPart& part, bool emulated) {
  with_tiles(emulated, [&](auto& tiles) { TiledPart(operands, part, tiles).multiply(); });
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_tiled_here);

void multiply_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated) {
  check(operands.weights->format.kind == WeightKind::kBf16, "codes have a product of their own");
  check_tiled(part);
  HWY_DYNAMIC_DISPATCH(multiply_tiled_here)(operands, part, emulated);
}

}  // namespace protean::cpu
#endif

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/matmul_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_code_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/finish-inl.h"
#include "device/cpu/tile_products-inl.h"
#include "device/cpu/weight_lines-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Codes become bf16, which is exact and takes a few operations where weights would take ten times
// as many, and the sums of each group are scaled. Two tiles of rows times a panel over 128 inputs,
// a run, keep the tiles busy for 256 cycles; meanwhile the sums of the run before are scaled, some
// rows after each few products, so that neither kind of instruction waits for the other.
constexpr std::int64_t kRunInputs = 128;
constexpr int kRunGroups = 4;  // at most
constexpr int kRunRows = 2 * kTileRows16;
// Inputs of a panel that are unpacked for all rows: in L1 they leave room for two tiles of rows.
constexpr std::int64_t kUnpackedInputs = 256;
static_assert(MatmulRows::kTileChunk % kUnpackedInputs == 0, "rows have them in one piece");
// Inputs multiplied before the next panel: those of many rows stay in L2; of few rows more fit, and
// long runs of a panel stream better.
constexpr std::int64_t kFewRowsInputs = 4096;
constexpr int kFewRows = kRunRows;

// What a part needs for as long as it runs; 570 KiB of stack.
struct CodeTileBuffers {
  alignas(64) float sums[kMaxTiledRows * kMaxTiledPanels * kPanel];  // [panel][row][32]
  alignas(64) std::uint32_t codes[kUnpackedInputs / 2 * kPanel];     // as bf16 is packed
  alignas(64) float products[2][kRunGroups * kRunRows * kPanel];     // of two runs
};

// Sums of a run over codes, and what they are scaled by and added to.
struct CodeSums {
  const float* products = nullptr;  // [groups][kRunRows][32]
  int groups = 0;
  bool last = false;  // groups of the inputs
  PanelRows out;
  const float* x_sums = nullptr;             // of the first row in the first group, if offsets are
  std::int64_t group_x_sums = 0;             // from one group's to the next one's
  const std::byte* weight_scales = nullptr;  // of the panel's first group
  std::int64_t group_bytes = 0;
  float* sums = nullptr;  // [rows][32]
};

// Rows [begin, end) of them: for each element the operations of matmul_vectors.cc in their order.
template <int kGroups, bool kOffsets>
HWY_INLINE void scale_code_groups(const CodeSums given, int begin, int end) {
  constexpr int V = std::min(2, kPanelVecs);
  const Floats floats;
  for (int first = 0; first < kPanel; first += V * kLanes) {
    Vec scales[kGroups][V], offsets[kGroups][V];
    HWY_UNROLL(4)
    for (int g = 0; g < kGroups; ++g) {
      HWY_UNROLL(2)
      for (int v = 0; v < V; ++v) {
        const std::byte* const from =
            given.weight_scales + g * given.group_bytes + (first + std::ptrdiff_t{v} * kLanes) * 2;
        scales[g][v] = load_scales(from);
        offsets[g][v] =
            kOffsets ? load_scales(from + std::ptrdiff_t{kPanel} * 2) : hn::Zero(floats);
      }
    }
    HWY_UNROLL(2)
    for (int r = begin; r < end; ++r) {
      float* const to = given.sums + std::ptrdiff_t{r} * kPanel + first;
      Vec sums[V];
      HWY_UNROLL(2)
      for (int v = 0; v < V; ++v) {
        sums[v] = hn::LoadU(floats, to + v * kLanes);
      }
      HWY_UNROLL(4)
      for (int g = 0; g < kGroups; ++g) {
        const float* const products =
            given.products + (std::ptrdiff_t{g} * kRunRows + r) * kPanel + first;
        HWY_UNROLL(2)
        for (int v = 0; v < V; ++v) {
          sums[v] = hn::MulAdd(scales[g][v], hn::LoadU(floats, products + v * kLanes), sums[v]);
        }
        if constexpr (kOffsets) {
          const Vec x_sum = hn::Set(floats, given.x_sums[g * given.group_x_sums + r]);
          HWY_UNROLL(2)
          for (int v = 0; v < V; ++v) {
            sums[v] = hn::MulAdd(offsets[g][v], x_sum, sums[v]);
          }
        }
      }
      HWY_UNROLL(2)
      for (int v = 0; v < V; ++v) {
        hn::StoreU(sums[v], floats, to + v * kLanes);
      }
    }
  }
}

template <bool kOffsets>
HWY_INLINE void scale_code_run(const CodeSums& given, int begin, int end) {
  switch (given.groups) {
    case 1:
      return scale_code_groups<1, kOffsets>(given, begin, end);
    case 2:
      return scale_code_groups<2, kOffsets>(given, begin, end);
    case 3:
      return scale_code_groups<3, kOffsets>(given, begin, end);
    default:
      static_assert(kRunGroups == 4);
      return scale_code_groups<4, kOffsets>(given, begin, end);
  }
}

HWY_NOINLINE void scale_code_rows(const CodeSums& given, int begin, int end) {
  given.x_sums != nullptr ? scale_code_run<true>(given, begin, end)
                          : scale_code_run<false>(given, begin, end);
}

// Inputs of a panel, of whole groups but for the last one.
struct PanelInputs {
  int panel = 0;  // of the part
  std::int64_t first = 0;
  std::int64_t end = 0;
};

template <class Tiles>
class CodeTiledPart {
 public:
  CodeTiledPart(const MatmulOperands& operands, const MatmulPart& part, Tiles& tiles)
      : operands_(operands),
        x_(*operands.x),
        weights_(*operands.weights),
        part_(part),
        tiles_(tiles),
        group_(weights_.format.group),
        inputs_(weights_.padded_inputs()),
        group_bytes_(weights_.group_bytes()),
        panel_bytes_(weights_.panel_bytes()) {}

  void multiply() {
    const std::int64_t chunk = part_.rows <= kFewRows ? kFewRowsInputs : kUnpackedInputs;
    for (std::int64_t first = 0; first < inputs_; first += chunk) {
      const std::int64_t end = std::min(first + chunk, inputs_);
      for (int panel = 0; panel < part_.panels; ++panel) {
        for (std::int64_t from = first; from < end; from += kUnpackedInputs) {
          const PanelInputs which{panel, from, std::min(from + kUnpackedInputs, end)};
          const PanelInputs next = which.end < end            ? inputs_at(panel, which.end)
                                   : panel + 1 < part_.panels ? inputs_at(panel + 1, first)
                                                              : inputs_at(0, end);
          multiply_panel(which, next);
        }
      }
    }
    scale_waiting(0, waiting_.out.rows);
  }

 private:
  const std::byte* panel_group(int panel, std::int64_t group) const {
    return weights_.data + (part_.first_panel + panel) * panel_bytes_ + group * group_bytes_;
  }

  PanelInputs inputs_at(int panel, std::int64_t first) const {
    return {panel, first, std::min(first + kUnpackedInputs, inputs_)};
  }
  // What is unpacked next, asked for while all rows are multiplied with `which`.
  LinesAhead lines_of(const PanelInputs& next, const PanelInputs& which) const {
    const std::int64_t groups = ceil_div(next.end - next.first, group_);
    const std::int64_t blocks = ceil_div(part_.rows, kRunRows);
    return {panel_group(next.panel, next.first / group_), groups * group_bytes_,
            blocks * (which.end - which.first) / kStepInputs};
  }

  template <class Lines>
  void unpack(const PanelInputs& which) {
    const std::int64_t scale_bytes = weights_.scale_bytes();
    for (std::int64_t from = which.first; from < which.end; from += group_) {
      unpack_lines<Pairs, Lines, false>(panel_group(which.panel, from / group_) + scale_bytes,
                                        std::min(group_, which.end - from),
                                        buffers_.codes + (from - which.first) / 2 * kPanel);
    }
  }

  void multiply_panel(const PanelInputs& which, const PanelInputs& next) {
    ahead_ = lines_of(next, which);
    switch (weights_.format.kind) {
      case WeightKind::kW8:
        unpack<W8Lines>(which);
        break;
      case WeightKind::kW4:
        unpack<W4Lines>(which);
        break;
      default:
        unpack<W3Lines>(which);
    }
    for (int row = 0; row < part_.rows; row += kRunRows) {
      const bool two = part_.rows - row > kTileRows16;
      PanelInputs run = which;
      const std::uint32_t* codes = buffers_.codes;
      for (; run.first < which.end; run.first = run.end, codes += kRunInputs / 2 * kPanel) {
        run.end = std::min(run.first + kRunInputs, which.end);
        two ? multiply_run<true>(run, row, codes) : multiply_run<false>(run, row, codes);
      }
    }
  }

  // Scales what waits while tiles multiply what is to wait next.
  template <bool kTwo>
  void multiply_run(const PanelInputs& run, int row, const std::uint32_t* codes) {
    products_ = 1 - products_;
    const CodeSums next = unscaled(run, row);
    if (run.first == 0) {
      std::fill_n(next.sums, next.out.rows * kPanel, 0.0f);
    }
    if (next.last) {
      expect_rows(operands_, next.out);
    }
    TileSteps from{.x = reinterpret_cast<const std::byte*>(x_.words) +
                        x_.tile_offset(part_.first_row + row, run.first),
                   .x_stride = x_.tile_stride(run.first),
                   .weights = codes};
    const int piece =
        ceil_div(waiting_.out.rows, static_cast<int>(ceil_div(run.end - run.first, kStepInputs)));
    int begin = 0;
    for (int g = 0; g < next.groups; ++g) {
      from.steps = std::min(group_, run.end - run.first - g * group_) / kStepInputs;
      zero_sums(tiles_);
      multiply_steps<kTwo, TileElement::kBf16>(tiles_, from, [&] {
        const int end = std::min(begin + piece, waiting_.out.rows);
        scale_waiting(begin, end);
        begin = end;
        ahead_.ask();
      });
      store_tiles<kTwo>(tiles_,
                        buffers_.products[products_] + std::ptrdiff_t{g} * kRunRows * kPanel,
                        kPanelRowBytes);
      from.x = static_cast<const std::byte*>(from.x) + from.steps * kTileMemory;
      from.weights = static_cast<const std::byte*>(from.weights) + from.steps * kPanelStepBytes;
    }
    waiting_ = next;
  }

  // Rows [begin, end) of what waits, if anything does.
  void scale_waiting(int begin, int end) {
    if (begin == end) {
      return;
    }
    scale_code_rows(waiting_, begin, end);
    if (waiting_.last) {
      finish_waiting(begin, end);
    }
  }
  HWY_NOINLINE void finish_waiting(int begin, int end) {
    finish_rows(operands_, {waiting_.out.first_row + begin, end - begin, waiting_.out.panel},
                waiting_.sums + std::ptrdiff_t{begin} * kPanel, kPanel);
  }

  CodeSums unscaled(const PanelInputs& run, int row) {
    const std::int64_t group = run.first / group_;
    const std::int64_t first_row = part_.first_row + row;
    return {.products = buffers_.products[products_],
            .groups = static_cast<int>(ceil_div(run.end - run.first, group_)),
            .last = run.end == inputs_,
            .out = {first_row, std::min(kRunRows, part_.rows - row), part_.first_panel + run.panel},
            .x_sums = weights_.format.symmetric
                          ? nullptr
                          : x_.group_sums + group * x_.blocks.rows + first_row,
            .group_x_sums = x_.blocks.rows,
            .weight_scales = panel_group(run.panel, group),
            .group_bytes = group_bytes_,
            .sums = buffers_.sums + (std::ptrdiff_t{run.panel} * part_.rows + row) * kPanel};
  }

  static constexpr std::int64_t kStepInputs = kTileInputs;

  const MatmulOperands& operands_;
  const MatmulRows& x_;
  const PackedMatrix& weights_;
  const MatmulPart& part_;
  Tiles& tiles_;
  const std::int64_t group_, inputs_, group_bytes_, panel_bytes_;  // weights_'s
  int products_ = 0;                                               // those of the last run
  CodeSums waiting_;
  LinesAhead ahead_;
  CodeTileBuffers buffers_;
};

void multiply_codes_tiled_here(const MatmulOperands& operands, const MatmulPart& part,
                               bool emulated) {
  with_tiles(emulated, [&](auto& tiles) { CodeTiledPart(operands, part, tiles).multiply(); });
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_codes_tiled_here);

void multiply_codes_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated) {
  check_tiled(part);
  HWY_DYNAMIC_DISPATCH(multiply_codes_tiled_here)(operands, part, emulated);
}

}  // namespace protean::cpu
#endif

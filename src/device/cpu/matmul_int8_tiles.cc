#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/matmul_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_int8_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/finish-inl.h"
#include "device/cpu/tile_products-inl.h"
#include "device/cpu/word_lines-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Two tiles of rows times a panel over 128 inputs, a run, keep the tiles busy for 128 cycles. In
// these, 64 vectors of integers must be scaled, or twice as many if groups are shorter. That is
// done with those of the run before, a piece after each few products, so that neither kind of
// instruction waits for the other. 64 rows and two panels go through the inputs together: what they
// need of 128, with their sums, stays in L1, and is read from L2 for two uses, 32 bytes a cycle.
constexpr int kRunSteps = 2;
constexpr int kRunGroups = 2;  // at most
constexpr int kRunRows = 2 * kTileRows16;
constexpr int kPassRows = 2 * kRunRows;
constexpr int kPassPanels = 2;
// Steps before the next rows: so much of all the part's rows and of two panels stays in L2.
constexpr std::int64_t kChunkSteps = 32;

// What a part needs for as long as it runs; 660 KiB of stack.
struct Int8TileBuffers {
  alignas(64) float sums[kMaxTiledRows * kMaxTiledPanels * kPanel];  // [panel][row][32]
  alignas(64) std::byte weights[kPassPanels * kChunkSteps * kPanelStepBytes];
  alignas(64) std::int32_t products[kRunGroups * kRunRows * kPanel];
};

// Readers of codes as signed bytes, four inputs in a word.
struct W8Bytes : W8Dot {
  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    return load_words(from);
  }
};
struct W4Bytes : W4Words {
  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    // Less the middle; so that no byte borrows from the next one, 128 more and, by Xor, less again.
    const Words words;
    const auto raised = hn::Add(W4Words::word<kWord>(from), hn::Set(words, 0x78787878U));
    return hn::Xor(raised, hn::Set(words, 0x80808080U));
  }
};

// Sums of integers of a run, and what they are scaled by and added to.
struct Unscaled {
  const std::int32_t* products = nullptr;  // [groups][kRunRows][32]
  int groups = 0;
  bool last = false;  // groups of the inputs
  PanelRows out;
  const float* scales = nullptr;  // of the first row in the first group, as totals
  const std::int32_t* totals = nullptr;
  std::int64_t group_scales = 0;             // from one group's to the next one's
  const std::byte* weight_scales = nullptr;  // of the panel's first group
  std::int64_t group_bytes = 0;
  bool offsets = false;
  float* sums = nullptr;  // [rows][32]
};

// Rows [begin, end) of them: for each element the operations of matmul_int8.cc in their order.
template <int kGroups, bool kOffsets>
HWY_INLINE void scale_groups(const Unscaled given, int begin, int end) {
  constexpr int V = std::min(2, kPanelVecs);
  const Floats floats;
  const Ints ints;
  for (int first = 0; first < kPanel; first += V * kLanes) {
    Vec scales[kGroups][V], offsets[kGroups][V];
    HWY_UNROLL(2)
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
    HWY_UNROLL(4)
    for (int r = begin; r < end; ++r) {
      float* const to = given.sums + std::ptrdiff_t{r} * kPanel + first;
      Vec sums[V];
      HWY_UNROLL(2)
      for (int v = 0; v < V; ++v) {
        sums[v] = hn::LoadU(floats, to + v * kLanes);
      }
      HWY_UNROLL(2)
      for (int g = 0; g < kGroups; ++g) {
        const std::int64_t at = g * given.group_scales + r;
        const std::int32_t* const products =
            given.products + (std::ptrdiff_t{g} * kRunRows + r) * kPanel + first;
        const Vec scale = hn::Set(floats, given.scales[at]);
        HWY_UNROLL(2)
        for (int v = 0; v < V; ++v) {
          const Vec product = hn::ConvertTo(floats, hn::LoadU(ints, products + v * kLanes));
          sums[v] = hn::MulAdd(hn::Mul(scales[g][v], scale), product, sums[v]);
        }
        if constexpr (kOffsets) {
          const auto total = static_cast<float>(given.totals[at]);
          const Vec scaled = hn::Set(floats, given.scales[at] * total);
          HWY_UNROLL(2)
          for (int v = 0; v < V; ++v) {
            sums[v] = hn::MulAdd(offsets[g][v], scaled, sums[v]);
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

HWY_NOINLINE void scale_rows(const Unscaled& given, int begin, int end) {
  if (given.groups == kRunGroups) {
    given.offsets ? scale_groups<kRunGroups, true>(given, begin, end)
                  : scale_groups<kRunGroups, false>(given, begin, end);
  } else {
    given.offsets ? scale_groups<1, true>(given, begin, end)
                  : scale_groups<1, false>(given, begin, end);
  }
}

// Some rows times some panels of a part, over some groups.
struct Pass {
  int row = 0, end_row = 0;
  int panel = 0, end_panel = 0;
  std::int64_t group = 0, end_group = 0;
};

template <class Tiles>
class Int8TiledPart {
 public:
  Int8TiledPart(const MatmulOperands& operands, const MatmulPart& part, Tiles& tiles)
      : operands_(operands),
        x_(*operands.int8),
        weights_(*operands.weights),
        part_(part),
        tiles_(tiles),
        scale_bytes_(weights_.scale_bytes()),
        group_bytes_(weights_.group_bytes()),
        panel_bytes_(weights_.panel_bytes()),
        groups_(x_.groups()),
        group_steps_(x_.group_steps()),
        row_steps_(x_.steps()) {}

  void multiply() {
    const std::int64_t chunk = kChunkSteps / group_steps_;
    for (std::int64_t group = 0; group < groups_; group += chunk) {
      for (int panel = 0; panel < part_.panels; panel += kPassPanels) {
        Pass pass{.panel = panel,
                  .end_panel = std::min(panel + kPassPanels, part_.panels),
                  .group = group,
                  .end_group = std::min(group + chunk, groups_)};
        unpack(pass);
        for (; pass.row < part_.rows; pass.row += kPassRows) {
          pass.end_row = std::min(pass.row + kPassRows, part_.rows);
          multiply_pass(pass);
        }
      }
    }
    scale_waiting(0, waiting_.out.rows);
  }

 private:
  const std::byte* panel_group(int panel, std::int64_t group) const {
    return weights_.data + (part_.first_panel + panel) * panel_bytes_ + group * group_bytes_;
  }
  const std::byte* codes(int panel, std::int64_t group) const {
    return panel_group(panel, group) + scale_bytes_;
  }
  // Whether tiles can be loaded from codes themselves: not where they would reach beyond the group.
  bool in_place(std::int64_t group) const {
    return weights_.format.kind == WeightKind::kW8 && x_.group_inputs(group) % kTileInt8s == 0;
  }
  std::byte* unpacked(const Pass& pass, int panel, std::int64_t group) {
    return buffers_.weights +
           ((panel - pass.panel) * kChunkSteps + (group - pass.group) * group_steps_) *
               kPanelStepBytes;
  }
  float* sums(int panel, int row) {
    return buffers_.sums + (std::ptrdiff_t{panel} * part_.rows + row) * kPanel;
  }

  void unpack(const Pass& pass) {
    for (int panel = pass.panel; panel < pass.end_panel; ++panel) {
      for (std::int64_t group = pass.group; group < pass.end_group; ++group) {
        if (in_place(group)) {
          continue;
        }
        const std::int64_t inputs = x_.group_inputs(group);
        std::byte* const to = unpacked(pass, panel, group);
        auto* const words = reinterpret_cast<std::uint32_t*>(to);
        if (weights_.format.kind == WeightKind::kW8) {
          unpack_words<W8Bytes>(codes(panel, group), inputs, words);
        } else {
          unpack_words<W4Bytes>(codes(panel, group), inputs, words);
        }
        // Rows have zeros there.
        std::fill(to + inputs * kPanel, to + round_up<std::int64_t>(inputs, kTileInt8s) * kPanel,
                  std::byte{0});
      }
    }
  }

  void multiply_pass(const Pass& pass) {
    Pass run = pass;
    for (; run.group < pass.end_group; run.group = run.end_group) {
      run.end_group = std::min(run.group + kRunSteps / group_steps_, pass.end_group);
      for (run.panel = pass.panel; run.panel < pass.end_panel; ++run.panel) {
        for (run.row = pass.row; run.row < pass.end_row; run.row += kRunRows) {
          run.end_row = std::min(run.row + kRunRows, pass.end_row);
          if (run.end_row - run.row > kTileRows16) {
            multiply_run<true>(pass, run);
          } else {
            multiply_run<false>(pass, run);
          }
        }
      }
    }
  }

  // Scales what waits while tiles multiply what is to wait next.
  template <bool kTwo>
  void multiply_run(const Pass& pass, const Pass& run) {
    const Unscaled next = unscaled(run);
    const std::int64_t share =
        prefetched_bytes<W8Bytes>(weights_.format.group, ceil_div(pass.end_row, kRunRows));
    if (run.group == 0) {
      std::fill_n(next.sums, next.out.rows * kPanel, 0.0f);
    }
    if (next.last) {
      expect_rows(operands_, next.out);
    }
    for (int g = 0; g < next.groups; ++g) {
      const std::int64_t group = run.group + g;
      if (pass.row == 0 && in_place(group)) {
        prefetch(codes(run.panel, group + kGroupsAhead) + run.row / kRunRows * share, share);
      }
      const TileSteps from = steps(pass, run, group);
      // What waits makes room for the first products.
      const int rows = g == 0 ? waiting_.out.rows : 0;
      const int piece = ceil_div(rows, static_cast<int>(from.steps));
      int begin = 0;
      zero_sums(tiles_);
      multiply_steps<kTwo, TileElement::kInt8>(tiles_, from, [&] {
        const int end = std::min(begin + piece, rows);
        scale_waiting(begin, end);
        begin = end;
      });
      store_tiles<kTwo>(tiles_, buffers_.products + std::ptrdiff_t{g} * kRunRows * kPanel,
                        kPanelRowBytes);
    }
    waiting_ = next;
  }

  // Rows [begin, end) of what waits, if anything does.
  void scale_waiting(int begin, int end) {
    if (begin == end) {
      return;
    }
    scale_rows(waiting_, begin, end);
    if (waiting_.last) {
      finish_waiting(begin, end);
    }
  }
  HWY_NOINLINE void finish_waiting(int begin, int end) {
    finish_rows(operands_, {waiting_.out.first_row + begin, end - begin, waiting_.out.panel},
                waiting_.sums + std::ptrdiff_t{begin} * kPanel, kPanel);
  }

  TileSteps steps(const Pass& pass, const Pass& run, std::int64_t group) {
    const std::int64_t row_tile = (part_.first_row + run.row) / kTileRows16;
    const std::int64_t step = row_tile * row_steps_ + group * group_steps_;
    return {.x = reinterpret_cast<const std::byte*>(x_.words) + step * kTileMemory,
            .x_stride = row_steps_ * kTileMemory,
            .weights = in_place(group) ? codes(run.panel, group) : unpacked(pass, run.panel, group),
            .steps = ceil_div<std::int64_t>(x_.group_inputs(group), kTileInt8s)};
  }

  Unscaled unscaled(const Pass& run) {
    const std::int64_t at = run.group * x_.blocks.rows + part_.first_row + run.row;
    return {
        .products = buffers_.products,
        .groups = static_cast<int>(run.end_group - run.group),
        .last = run.end_group == groups_,
        .out = {part_.first_row + run.row, run.end_row - run.row, part_.first_panel + run.panel},
        .scales = x_.scales + at,
        .totals = x_.totals + at,
        .group_scales = x_.blocks.rows,
        .weight_scales = panel_group(run.panel, run.group),
        .group_bytes = group_bytes_,
        .offsets = !weights_.format.symmetric,
        .sums = sums(run.panel, run.row)};
  }

  const MatmulOperands& operands_;
  const Int8Rows& x_;
  const PackedMatrix& weights_;
  const MatmulPart& part_;
  Tiles& tiles_;
  const std::int64_t scale_bytes_, group_bytes_, panel_bytes_;  // weights_'s
  const std::int64_t groups_, group_steps_, row_steps_;         // x_'s
  Unscaled waiting_;
  Int8TileBuffers buffers_;
};

void multiply_int8_tiled_here(const MatmulOperands& operands, const MatmulPart& part,
                              bool emulated) {
  with_tiles(emulated, [&](auto& tiles) { Int8TiledPart(operands, part, tiles).multiply(); });
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_int8_tiled_here);

void multiply_int8_tiled(const MatmulOperands& operands, const MatmulPart& part, bool emulated) {
  check_tiled(part);
  HWY_DYNAMIC_DISPATCH(multiply_int8_tiled_here)(operands, part, emulated);
}

}  // namespace protean::cpu
#endif

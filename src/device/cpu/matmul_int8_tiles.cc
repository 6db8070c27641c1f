#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/matmul_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_int8_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/tile_groups-inl.h"
#include "device/cpu/word_lines-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Read codes as signed bytes, four inputs in a word.
struct W8Bytes : W8Dot {
  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    return load_words(from);
  }
};
struct W4Bytes : W4Words {
  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    // Subtracts the middle: adds 128 minus the middle, so that no byte borrows from the next, and
    // then removes the 128 with Xor.
    const Words words;
    const auto raised = hn::Add(W4Words::word<kWord>(from), hn::Set(words, 0x78787878U));
    return hn::Xor(raised, hn::Set(words, 0x80808080U));
  }
};

// Multiplies codes as integers and scales the sums of each group, which are exact
// (tile_groups-inl.h). The operations for each element are those of matmul_int8.cc in the same
// order.
class Int8Kernel {
 public:
  static constexpr TileElement kElement = TileElement::kInt8;

  explicit Int8Kernel(const MatmulOperands& operands)
      : x_(*operands.int8),
        weights_(*operands.weights),
        scale_bytes_(weights_.scale_bytes()),
        group_bytes_(weights_.group_bytes()),
        group_steps_(x_.group_steps()) {}

  void unpack(const std::byte* from, std::int64_t group, std::int64_t end, std::byte* room) const {
    for (; group < end; ++group, from += group_bytes_, room += group_steps_ * kPanelStepBytes) {
      if (in_place(group)) {
        continue;
      }
      const std::int64_t inputs = x_.group_inputs(group);
      auto* const words = reinterpret_cast<std::uint32_t*>(room);
      if (weights_.format.kind == WeightKind::kW8) {
        unpack_words<W8Bytes>(from + scale_bytes_, inputs, words);
      } else {
        unpack_words<W4Bytes>(from + scale_bytes_, inputs, words);
      }
      // Clears the inputs beyond the group, where rows have zeros.
      std::fill(room + inputs * kPanel, room + round_up<std::int64_t>(inputs, kTileInt8s) * kPanel,
                std::byte{0});
    }
  }
  const void* weights(const std::byte* data, std::int64_t group, const std::byte* unpacked) const {
    return in_place(group) ? data + scale_bytes_ : unpacked;
  }
  TileSteps rows(std::int64_t first_row, std::int64_t group) const {
    const std::int64_t row_steps = x_.stored_steps();
    const std::int64_t step = first_row / kTileRows16 * row_steps + group * group_steps_;
    return {.x = reinterpret_cast<const std::byte*>(x_.words) + step * kTileMemory,
            .x_stride = row_steps * kTileMemory};
  }
  template <int kGroups>
  HWY_INLINE void scale(const GroupRun& run, int begin, int end) const {
    weights_.format.symmetric ? scale_groups<kGroups, false>(run, begin, end)
                              : scale_groups<kGroups, true>(run, begin, end);
  }

 private:
  // Returns true if tiles can be loaded from the codes directly, without reaching beyond the group.
  bool in_place(std::int64_t group) const {
    return weights_.format.kind == WeightKind::kW8 && x_.group_inputs(group) % kTileInt8s == 0;
  }

  template <int kGroups, bool kOffsets>
  HWY_INLINE void scale_groups(const GroupRun& run, int begin, int end) const;

  const Int8Rows& x_;
  const PackedMatrix& weights_;
  const std::int64_t scale_bytes_, group_bytes_;
  const std::int64_t group_steps_;
};

template <int kGroups, bool kOffsets>
HWY_INLINE void Int8Kernel::scale_groups(const GroupRun& run, int begin, int end) const {
  constexpr int V = std::min(2, kPanelVecs);
  const Floats floats;
  const Ints ints;
  const std::int64_t rows = x_.blocks.rows;
  const std::int64_t first = run.group * rows + run.out.first_row;
  const auto* const products = reinterpret_cast<const std::int32_t*>(run.products);
  alignas(64) float totals[kGroups][kTileBlockRows + kLanes];  // totals times the row's scale
  if constexpr (kOffsets) {
    for (int g = 0; g < kGroups; ++g) {
      for (int r = begin; r < end; r += kLanes) {
        const auto left = static_cast<std::size_t>(end - r);
        const std::int64_t at = first + g * rows + r;
        const Vec total =
            hn::ConvertTo(floats, hn::MaskedLoad(hn::FirstN(ints, left), ints, x_.totals + at));
        const Vec scale = hn::MaskedLoad(hn::FirstN(floats, left), floats, x_.scales + at);
        hn::StoreU(hn::Mul(scale, total), floats, totals[g] + r);
      }
    }
  }
  for (int column = 0; column < kPanel; column += V * kLanes) {
    Vec scales[kGroups][V], offsets[kGroups][V];
    HWY_UNROLL(4)
    for (int g = 0; g < kGroups; ++g) {
      HWY_UNROLL(2)
      for (int v = 0; v < V; ++v) {
        const std::byte* const from =
            run.weights + g * group_bytes_ + (column + std::ptrdiff_t{v} * kLanes) * 2;
        scales[g][v] = load_scales(from);
        offsets[g][v] =
            kOffsets ? load_scales(from + std::ptrdiff_t{kPanel} * 2) : hn::Zero(floats);
      }
    }
    for (int r = begin; r < end; ++r) {
      float* const to = run.sums + std::ptrdiff_t{r} * kPanel + column;
      Vec sums[V];
      HWY_UNROLL(2)
      for (int v = 0; v < V; ++v) {
        sums[v] = run.first ? hn::Zero(floats) : hn::LoadU(floats, to + v * kLanes);
      }
      HWY_UNROLL(4)
      for (int g = 0; g < kGroups; ++g) {
        const std::int64_t at = first + g * rows + r;
        const std::int32_t* const from =
            products + g * kRunFloats + std::ptrdiff_t{r} * kPanel + column;
        const Vec scale = hn::Set(floats, x_.scales[at]);
        HWY_UNROLL(2)
        for (int v = 0; v < V; ++v) {
          const Vec product = hn::ConvertTo(floats, hn::LoadU(ints, from + v * kLanes));
          sums[v] = hn::MulAdd(hn::Mul(scales[g][v], scale), product, sums[v]);
        }
        if constexpr (kOffsets) {
          const Vec scaled = hn::Set(floats, totals[g][r]);
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

void multiply_int8_tiled_here(const MatmulOperands& operands, const MatmulTask& task,
                              bool emulated) {
  with_tiles(emulated, [&](auto& tiles) {
    Int8Kernel kernel(operands);
    GroupedTask(kernel, operands, task, tiles).multiply();
  });
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_int8_tiled_here);

void multiply_int8_tiled(const MatmulOperands& operands, const MatmulTask& task, bool emulated) {
  check_tiled(task);
  HWY_DYNAMIC_DISPATCH(multiply_int8_tiled_here)(operands, task, emulated);
}

}  // namespace protean::cpu
#endif

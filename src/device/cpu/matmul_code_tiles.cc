#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/matmul_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_code_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/tile_groups-inl.h"
#include "device/cpu/weight_lines-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Multiplies codes as bf16, which is exact and takes a tenth of the operations that converting
// weights would take, and scales the sums of each group (tile_groups-inl.h). The operations for
// each element are those of matmul_vectors.cc in the same order.
class CodeKernel {
 public:
  static constexpr TileElement kElement = TileElement::kBf16;

  explicit CodeKernel(const MatmulOperands& operands)
      : x_(*operands.x),
        weights_(*operands.weights),
        group_(weights_.format.group),
        group_bytes_(weights_.group_bytes()) {}

  void unpack(const std::byte* from, std::int64_t group, std::int64_t end, std::byte* room) const {
    auto* const to = reinterpret_cast<std::uint32_t*>(room);
    switch (weights_.format.kind) {
      case WeightKind::kW8:
        return unpack_groups<W8Lines>(from, group, end, to);
      case WeightKind::kW4:
        return unpack_groups<W4Lines>(from, group, end, to);
      default:
        return unpack_groups<W3Lines>(from, group, end, to);
    }
  }
  static const void* weights(const std::byte* /*data*/, std::int64_t /*group*/,
                             const std::byte* unpacked) {
    return unpacked;
  }
  TileSteps rows(std::int64_t first_row, std::int64_t group) const {
    return {.x = reinterpret_cast<const std::byte*>(x_.words) +
                 x_.tile_offset(first_row, group * group_),
            .x_stride = x_.tile_stride(group * group_)};
  }
  template <int kGroups>
  HWY_INLINE void scale(const GroupRun& run, int begin, int end) const {
    weights_.format.symmetric ? scale_groups<kGroups, false>(run, begin, end)
                              : scale_groups<kGroups, true>(run, begin, end);
  }

 private:
  template <class Lines>
  void unpack_groups(const std::byte* from, std::int64_t group, std::int64_t end,
                     std::uint32_t* to) const {
    for (; group < end; ++group, from += group_bytes_, to += group_ / 2 * kPanel) {
      unpack_lines<Pairs, Lines>(from + weights_.scale_bytes(),
                                 std::min(group_, weights_.padded_inputs() - group * group_), to);
    }
  }

  template <int kGroups, bool kOffsets>
  HWY_INLINE void scale_groups(const GroupRun& run, int begin, int end) const;

  const MatmulRows& x_;
  const PackedMatrix& weights_;
  const std::int64_t group_, group_bytes_;
};

template <int kGroups, bool kOffsets>
HWY_INLINE void CodeKernel::scale_groups(const GroupRun& run, int begin, int end) const {
  constexpr int V = std::min(2, kPanelVecs);
  const Floats floats;
  const std::int64_t rows = x_.blocks.rows;
  const float* const x_sums =
      kOffsets ? x_.group_sums + run.group * rows + run.out.first_row : nullptr;
  const float* const products = run.products;
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
        const float* const from = products + g * kRunFloats + std::ptrdiff_t{r} * kPanel + column;
        HWY_UNROLL(2)
        for (int v = 0; v < V; ++v) {
          sums[v] = hn::MulAdd(scales[g][v], hn::LoadU(floats, from + v * kLanes), sums[v]);
        }
        if constexpr (kOffsets) {
          const Vec x_sum = hn::Set(floats, x_sums[g * rows + r]);
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

void multiply_codes_tiled_here(const MatmulOperands& operands, const MatmulTask& task,
                               bool emulated) {
  with_tiles(emulated, [&](auto& tiles) {
    CodeKernel kernel(operands);
    GroupedTask(kernel, operands, task, tiles).multiply();
  });
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_codes_tiled_here);

void multiply_codes_tiled(const MatmulOperands& operands, const MatmulTask& task, bool emulated) {
  check_tiled(task);
  HWY_DYNAMIC_DISPATCH(multiply_codes_tiled_here)(operands, task, emulated);
}

}  // namespace protean::cpu
#endif

#include "device/cpu/matmul_row.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "device/cpu/flush_denormals.h"
#include "device/cpu/tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_row.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/finish-inl.h"
#include "device/cpu/weight_lines-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Vectors of outputs that are multiplied together, which are whole panels. Each has two chains of
// additions, and eight chains hide the latency of multiply-adds.
constexpr int kRowVecs = std::max(4, kPanelVecs);
constexpr int kRowPanels = kRowVecs / kPanelVecs;

// Some panels of a task and their sums.
template <int kPanels>
struct RowSums {
  static constexpr int kVecs = kPanels * kPanelVecs;
  Vec sums[kVecs];

  void clear() {
    for (Vec& sum : sums) {
      sum = hn::Zero(Floats());
    }
  }
};

// The products of even and of odd inputs, which TDPBF16PS adds up separately.
template <int kPanels>
struct StepSums {
  RowSums<kPanels> even, odd;
};

template <class Lines, int kPair, int kPanels>
HWY_INLINE void multiply_pair(const float* x, const std::byte* line, std::int64_t panel_bytes,
                              Vec table, StepSums<kPanels>& step) {
  const Vec even = hn::Set(Floats(), x[2 * kPair]);
  const Vec odd = hn::Set(Floats(), x[2 * kPair + 1]);
  HWY_UNROLL(32)
  for (int v = 0; v < kPanels * kPanelVecs; ++v) {
    const std::byte* const from =
        line + v / kPanelVecs * panel_bytes + v % kPanelVecs * kLanes * Lines::kOutputBytes;
    step.even.sums[v] =
        hn::MulAdd(even, Lines::template value<2 * kPair>(from, table), step.even.sums[v]);
    step.odd.sums[v] =
        hn::MulAdd(odd, Lines::template value<2 * kPair + 1>(from, table), step.odd.sums[v]);
  }
}

template <class Lines, int kPanels, int... kPair>
HWY_INLINE void multiply_line(const float* x, const std::byte* line, std::int64_t panel_bytes,
                              Vec table, StepSums<kPanels>& step,
                              std::integer_sequence<int, kPair...> /*pairs of a line*/) {
  (multiply_pair<Lines, kPair, kPanels>(x, line, panel_bytes, table, step), ...);
}

// Adds the products of `inputs` inputs, whole steps of a tile, like TDPBF16PS.
template <class Lines, int kPanels>
HWY_INLINE void multiply_steps(const float* x, const std::byte* lines, std::int64_t panel_bytes,
                               std::int64_t inputs, RowSums<kPanels>& products) {
  const Vec table = Lines::table();
  for (std::int64_t i = 0; i < inputs; i += kTileInputs) {
    StepSums<kPanels> step;
    step.even.clear();
    step.odd.clear();
    HWY_UNROLL(16)
    for (int line = 0; line < kTileInputs / Lines::kInputs; ++line) {
      multiply_line<Lines, kPanels>(x, lines, panel_bytes, table, step,
                                    std::make_integer_sequence<int, Lines::kInputs / 2>());
      x += Lines::kInputs;
      lines += Lines::kBytes;
    }
    HWY_UNROLL(32)
    for (int v = 0; v < kPanels * kPanelVecs; ++v) {
      products.sums[v] = hn::Add(products.sums[v], hn::Add(step.even.sums[v], step.odd.sums[v]));
    }
  }
}

// The row of a task, and where each group of inputs begins.
class RowTask {
 public:
  RowTask(const MatmulOperands& operands, const MatmulTask& task)
      : operands_(operands),
        weights_(*operands.weights),
        task_(task),
        x_(operands.x->x + task.first_row * weights_.inputs) {
    const std::int64_t whole = weights_.inputs / kTileInputs * kTileInputs;
    std::copy(x_ + whole, x_ + weights_.inputs, rest_);
  }

  template <class Lines>
  void multiply() const {
    int panel = 0;
    for (; panel + kRowPanels <= task_.panels; panel += kRowPanels) {
      multiply_panels<Lines, kRowPanels>(panel);
    }
    for (; panel < task_.panels; ++panel) {
      multiply_panels<Lines, 1>(panel);
    }
  }

 private:
  template <class Lines, int kPanels>
  HWY_NOINLINE void multiply_panels(int first) const {
    const std::int64_t panel_bytes = weights_.panel_bytes();
    const std::byte* data = weights_.data + (task_.first_panel + first) * panel_bytes;
    const std::int64_t each = weights_.format.group;
    RowSums<kPanels> sums;
    sums.clear();
    for (std::int64_t from = 0; from < weights_.padded_inputs(); from += each) {
      const std::int64_t end = std::min(from + each, weights_.padded_inputs());
      RowSums<kPanels> products;
      products.clear();
      const std::byte* lines = data + weights_.scale_bytes();
      // The last step may reach beyond the inputs.
      const std::int64_t whole =
          std::max(from, std::min(end, weights_.inputs / kTileInputs * kTileInputs));
      multiply_steps<Lines, kPanels>(x_ + from, lines, panel_bytes, whole - from, products);
      lines += (whole - from) / Lines::kInputs * Lines::kBytes;
      multiply_steps<Lines, kPanels>(rest_, lines, panel_bytes, end - whole, products);
      scale<kPanels>(data, from / each, products, sums);
      data += weights_.group_bytes();
    }
    alignas(64) float finished[kPanels * kPanel];
    for (int v = 0; v < RowSums<kPanels>::kVecs; ++v) {
      hn::Store(sums.sums[v], Floats(), finished + v * kLanes);
    }
    for (int i = 0; i < kPanels; ++i) {
      finish_rows(operands_, {task_.first_row, 1, task_.first_panel + first + i},
                  finished + i * kPanel, kPanel);
    }
  }

  // Adds scaled products and offsets like matmul_code_tiles.cc.
  template <int kPanels>
  HWY_INLINE void scale(const std::byte* scales, std::int64_t group,
                        const RowSums<kPanels>& products, RowSums<kPanels>& sums) const {
    const bool offsets = !weights_.format.symmetric;
    const Vec x_sum = hn::Set(
        Floats(), offsets
                      ? operands_.x->group_sums[group * operands_.x->blocks.rows + task_.first_row]
                      : 0.0f);
    HWY_UNROLL(32)
    for (int v = 0; v < kPanels * kPanelVecs; ++v) {
      const std::byte* const from =
          scales + v / kPanelVecs * weights_.panel_bytes() + v % kPanelVecs * kLanes * 2;
      sums.sums[v] = hn::MulAdd(load_scales(from), products.sums[v], sums.sums[v]);
      if (offsets) {
        sums.sums[v] =
            hn::MulAdd(load_scales(from + std::ptrdiff_t{kPanel} * 2), x_sum, sums.sums[v]);
      }
    }
  }

  const MatmulOperands& operands_;
  const PackedMatrix& weights_;
  const MatmulTask& task_;
  const float* const x_;
  float rest_[kTileInputs] = {};  // the inputs of the last step, if it is not whole
};

void multiply_row_here(const MatmulOperands& operands, const MatmulTask& task) {
  const RowTask row(operands, task);
  switch (operands.weights->format.kind) {
    case WeightKind::kW8:
      return row.multiply<W8Lines>();
    case WeightKind::kW4:
      return row.multiply<W4Lines>();
    case WeightKind::kW3:
      return row.multiply<W3Lines>();
    default:
      check(false, "only codes have a product of their own");
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_row_here);

bool multiplies_row(const MatmulOperands& operands, const MatmulTask& task, bool emulated) {
  return task.rows == 1 && operands.weights->format.quantized() &&
         (emulated || amx_rounds_as_documented());
}

void multiply_row(const MatmulOperands& operands, const MatmulTask& task) {
  [[maybe_unused]] const FlushDenormals flush;
  HWY_DYNAMIC_DISPATCH(multiply_row_here)(operands, task);
}

}  // namespace protean::cpu
#endif

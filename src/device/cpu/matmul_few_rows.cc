#include "device/cpu/matmul_few_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "device/cpu/tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_few_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/finish-inl.h"
#include "device/cpu/weight_lines-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// The sums of some rows and of some panels of outputs.
template <int kRows, int kPanels>
struct RowSums {
  static constexpr int kVecs = kPanels * kPanelVecs;
  Vec at[kRows][kVecs];

  HWY_INLINE void clear() {
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kVecs; ++v) {
        at[r][v] = hn::Zero(Floats());
      }
    }
  }
};

// Panels that are multiplied together. A vector of outputs has two chains of additions for each
// row, and eight chains hide the latency of multiply-adds.
constexpr int panels_together(int rows) {
  return rows <= 2 ? std::max(1, 4 / kPanelVecs) : 1;
}

// The first inputs of rows, and the first line of their codes in the first panel.
struct LinesAt {
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const std::byte* codes = nullptr;
  std::int64_t panel_bytes = 0;
  Vec table;  // of the codes
};

// Adds the products of a pair of inputs: TDPBF16PS adds up those of even and of odd inputs
// separately.
template <class Lines, int kPair, int kRows, int kPanels>
HWY_INLINE void multiply_pair(const LinesAt& line, RowSums<kRows, kPanels>& even,
                              RowSums<kRows, kPanels>& odd) {
  HWY_UNROLL(4)
  for (int v = 0; v < kPanels * kPanelVecs; ++v) {
    const std::byte* const from = line.codes + v / kPanelVecs * line.panel_bytes +
                                  v % kPanelVecs * kLanes * Lines::kOutputBytes;
    const Vec first = Lines::template value<2 * kPair>(from, line.table);
    const Vec second = Lines::template value<2 * kPair + 1>(from, line.table);
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const float* const x = line.x + r * line.x_stride + 2 * kPair;
      even.at[r][v] = hn::MulAdd(hn::Set(Floats(), x[0]), first, even.at[r][v]);
      odd.at[r][v] = hn::MulAdd(hn::Set(Floats(), x[1]), second, odd.at[r][v]);
    }
  }
}

template <class Lines, int kRows, int kPanels, int... kPair>
HWY_INLINE void multiply_line(const LinesAt& line, RowSums<kRows, kPanels>& even,
                              RowSums<kRows, kPanels>& odd,
                              std::integer_sequence<int, kPair...> /*pairs of a line*/) {
  (multiply_pair<Lines, kPair>(line, even, odd), ...);
}

// Prefetches a later line into L2: the prefetcher of the processor begins anew in each page.
template <class Lines, int kPanels>
HWY_INLINE void prefetch_ahead(const LinesAt& line) {
  constexpr std::int64_t kAheadBytes = 2048, kCacheLine = 64;
  HWY_UNROLL(4)
  for (int panel = 0; panel < kPanels; ++panel) {
    const std::byte* const from = line.codes + panel * line.panel_bytes + kAheadBytes;
    HWY_UNROLL(8)
    for (std::int64_t byte = 0; byte < Lines::kBytes; byte += kCacheLine) {
      __builtin_prefetch(from + byte, 0, 2);  // for reading, into L2; 3 would be L1
    }
  }
}

// Adds the products of `inputs` inputs, whole steps of a tile, like TDPBF16PS.
template <class Lines, int kRows, int kPanels>
HWY_INLINE void multiply_steps(LinesAt at, std::int64_t inputs, RowSums<kRows, kPanels>& products) {
  for (std::int64_t i = 0; i < inputs; i += kTileInputs) {
    RowSums<kRows, kPanels> even, odd;
    even.clear();
    odd.clear();
    HWY_UNROLL(16)
    for (int line = 0; line < kTileInputs / Lines::kInputs; ++line) {
      multiply_line<Lines>(at, even, odd, std::make_integer_sequence<int, Lines::kInputs / 2>());
      prefetch_ahead<Lines, kPanels>(at);
      at.x += Lines::kInputs;
      at.codes += Lines::kBytes;
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kPanels * kPanelVecs; ++v) {
        products.at[r][v] = hn::Add(products.at[r][v], hn::Add(even.at[r][v], odd.at[r][v]));
      }
    }
  }
}

// A task of kRows rows.
template <class Lines, int kRows>
class FewRowsTask {
 public:
  FewRowsTask(const MatmulOperands& operands, const MatmulTask& task)
      : operands_(operands),
        weights_(*operands.weights),
        task_(task),
        x_(operands.x->x + task.first_row * weights_.inputs),
        whole_(weights_.inputs / kTileInputs * kTileInputs) {
    for (int r = 0; r < kRows; ++r) {
      const float* const row = x_ + r * weights_.inputs;
      std::copy(row + whole_, row + weights_.inputs, rest_[r]);
    }
  }

  void multiply() const {
    constexpr int kTogether = panels_together(kRows);
    int panel = 0;
    for (; panel + kTogether <= task_.panels; panel += kTogether) {
      multiply_panels<kTogether>(panel);
    }
    for (; panel < task_.panels; ++panel) {
      multiply_panels<1>(panel);
    }
  }

 private:
  template <int kPanels>
  HWY_NOINLINE void multiply_panels(int first) const {
    using Sums = RowSums<kRows, kPanels>;
    const std::int64_t panel_bytes = weights_.panel_bytes();
    const std::byte* data = weights_.data + (task_.first_panel + first) * panel_bytes;
    const bool scaled = weights_.format.quantized();
    const std::int64_t each = scaled ? weights_.format.group : weights_.padded_inputs();
    const Vec table = Lines::table();
    Sums sums;
    sums.clear();
    for (std::int64_t from = 0; from < weights_.padded_inputs(); from += each) {
      const std::int64_t end = std::min(from + each, weights_.padded_inputs());
      const std::int64_t whole = std::max(from, std::min(end, whole_));
      LinesAt at{x_ + from, weights_.inputs, data + (scaled ? weights_.scale_bytes() : 0),
                 panel_bytes, table};
      Sums products;
      products.clear();
      multiply_steps<Lines>(at, whole - from, products);
      if (whole < end) {
        at.x = rest_[0];
        at.x_stride = kTileInputs;
        at.codes += (whole - from) / Lines::kInputs * Lines::kBytes;
        multiply_steps<Lines>(at, end - whole, products);
      }
      if (scaled) {
        scale(data, from / each, products, sums);
        data += weights_.group_bytes();
      } else {
        sums = products;
      }
    }
    alignas(64) float finished[kRows][kPanels * kPanel];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < Sums::kVecs; ++v) {
        hn::Store(sums.at[r][v], Floats(), finished[r] + v * kLanes);
      }
    }
    for (int i = 0; i < kPanels; ++i) {
      finish_rows(operands_, {task_.first_row, kRows, task_.first_panel + first + i},
                  finished[0] + i * kPanel, kPanels * kPanel);
    }
  }

  // Adds scaled products and offsets like matmul_code_tiles.cc.
  template <int kPanels>
  HWY_INLINE void scale(const std::byte* scales, std::int64_t group,
                        const RowSums<kRows, kPanels>& products,
                        RowSums<kRows, kPanels>& sums) const {
    const bool offsets = !weights_.format.symmetric;
    const float* const x_sums =
        offsets ? operands_.x->group_sums + group * operands_.x->blocks.rows + task_.first_row
                : nullptr;
    HWY_UNROLL(4)
    for (int v = 0; v < kPanels * kPanelVecs; ++v) {
      const std::byte* const from =
          scales + v / kPanelVecs * weights_.panel_bytes() + v % kPanelVecs * kLanes * 2;
      const Vec scale = load_scales(from);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        sums.at[r][v] = hn::MulAdd(scale, products.at[r][v], sums.at[r][v]);
      }
      if (offsets) {
        const Vec offset = load_scales(from + std::ptrdiff_t{kPanel} * 2);
        HWY_UNROLL(4)
        for (int r = 0; r < kRows; ++r) {
          sums.at[r][v] = hn::MulAdd(offset, hn::Set(Floats(), x_sums[r]), sums.at[r][v]);
        }
      }
    }
  }

  const MatmulOperands& operands_;
  const PackedMatrix& weights_;
  const MatmulTask& task_;
  const float* const x_;
  const std::int64_t whole_;             // inputs in whole steps
  float rest_[kRows][kTileInputs] = {};  // the inputs of the last step, if it is not whole
};

// Multiplies the rows of a task, at most kMost.
template <class Lines, int kMost>
void multiply_few_rows(const MatmulOperands& operands, const MatmulTask& task) {
  if (task.rows == kMost) {
    return FewRowsTask<Lines, kMost>(operands, task).multiply();
  }
  if constexpr (kMost > 1) {
    return multiply_few_rows<Lines, kMost - 1>(operands, task);
  }
}

void multiply_few_rows_here(const MatmulOperands& operands, const MatmulTask& task) {
  switch (operands.weights->format.kind) {
    case WeightKind::kBf16:
      return multiply_few_rows<Bf16Lines, most_few_rows(WeightKind::kBf16)>(operands, task);
    case WeightKind::kW8:
      return multiply_few_rows<W8Lines, most_few_rows(WeightKind::kW8)>(operands, task);
    case WeightKind::kW4:
      return multiply_few_rows<W4Lines, most_few_rows(WeightKind::kW4)>(operands, task);
    case WeightKind::kW3:
      return multiply_few_rows<W3Lines, most_few_rows(WeightKind::kW3)>(operands, task);
    case WeightKind::kF32:
    case WeightKind::kTwoOfFour:
      check(false, "other kernels multiply few rows with these weights");
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {

HWY_EXPORT(multiply_few_rows_here);

bool are_few_rows(const MatmulOperands& operands, const MatmulTask& task, bool emulated) {
  return operands.x->x != nullptr && task.rows <= most_few_rows(operands.weights->format.kind) &&
         (emulated || amx_rounds_as_documented());
}

void multiply_few_rows(const MatmulOperands& operands, const MatmulTask& task) {
  HWY_DYNAMIC_DISPATCH(multiply_few_rows_here)(operands, task);
}

}  // namespace protean::cpu
#endif

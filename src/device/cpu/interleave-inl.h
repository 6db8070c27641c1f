// The layout of rows for the vector tiles of a matmul. Compiled once for each instruction set.

#if defined(PROTEAN_DEVICE_CPU_INTERLEAVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_INTERLEAVE_INL_H_
#undef PROTEAN_DEVICE_CPU_INTERLEAVE_INL_H_
#else
#define PROTEAN_DEVICE_CPU_INTERLEAVE_INL_H_
#endif

#include <cstdint>

#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Returns the most rows of a tile of integers. Their sums must leave registers for a broadcast
// input and for the words of a line for two vectors of outputs; `two_words` formats have two of
// each.
constexpr int most_integer_rows(bool two_words) {
  return kLanes == 16 ? 12 : two_words ? 4 : 5;
}

// The most rows of a tile of f32 or pairs of bf16. Sums must leave registers for weights and a
// broadcast input.
constexpr int kFloatTileRows = kLanes == 16 ? 12 : 6;

// Transposes [rows][inputs] of f32 or words to [inputs][rows], so that a tile reads one stream.
// Rows that are a power of two apart would compete for the same cache lines.
template <class T>
void interleave_rows(const T* x, std::int64_t row_stride, int rows, std::int64_t inputs, T* out) {
  int r = 0;
#if HWY_TARGET != HWY_SCALAR
  static_assert(sizeof(T) == 4);
  const hn::CappedTag<T, 4> quad;
  const hn::Repartition<double, decltype(quad)> halves;
  for (; r + 4 <= rows; r += 4) {
    const T* const row = x + r * row_stride;
    std::int64_t i = 0;
    for (; i + 4 <= inputs; i += 4) {
      const auto r0 = hn::LoadU(quad, row + i);
      const auto r1 = hn::LoadU(quad, row + row_stride + i);
      const auto r2 = hn::LoadU(quad, row + 2 * row_stride + i);
      const auto r3 = hn::LoadU(quad, row + 3 * row_stride + i);
      const auto a = hn::BitCast(halves, hn::InterleaveLower(quad, r0, r1));
      const auto b = hn::BitCast(halves, hn::InterleaveLower(quad, r2, r3));
      const auto c = hn::BitCast(halves, hn::InterleaveUpper(quad, r0, r1));
      const auto d = hn::BitCast(halves, hn::InterleaveUpper(quad, r2, r3));
      T* const to = out + i * rows + r;
      hn::StoreU(hn::BitCast(quad, hn::InterleaveLower(halves, a, b)), quad, to);
      hn::StoreU(hn::BitCast(quad, hn::InterleaveUpper(halves, a, b)), quad, to + rows);
      hn::StoreU(hn::BitCast(quad, hn::InterleaveLower(halves, c, d)), quad, to + 2 * rows);
      hn::StoreU(hn::BitCast(quad, hn::InterleaveUpper(halves, c, d)), quad, to + 3 * rows);
    }
    for (; i < inputs; ++i) {
      for (int k = 0; k < 4; ++k) {
        out[i * rows + r + k] = row[k * row_stride + i];
      }
    }
  }
#endif
  for (; r < rows; ++r) {
    for (std::int64_t i = 0; i < inputs; ++i) {
      out[i * rows + r] = x[r * row_stride + i];
    }
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

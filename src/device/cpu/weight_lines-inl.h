// How the formats of a packed matrix become vectors of f32, compiled once per instruction set.

#if defined(PROTEAN_DEVICE_CPU_WEIGHT_LINES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_WEIGHT_LINES_INL_H_
#undef PROTEAN_DEVICE_CPU_WEIGHT_LINES_INL_H_
#else
#define PROTEAN_DEVICE_CPU_WEIGHT_LINES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include "device/cpu/lanes-inl.h"
#include "device/cpu/packed_matrix.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

using Ints = hn::RebindToSigned<Floats>;
using WordVec = hn::Vec<Words>;

constexpr int kPanel = PackedMatrix::kPanel;
constexpr int kPanelVecs = kPanel / kLanes;

// The signed field of kBits at kBit of every word; what stands above it does not matter. Looked up
// where a table of 16 floats is one register, else sign-extended.
template <int kBits, int kBit>
HWY_INLINE Vec field_value(WordVec words, [[maybe_unused]] Vec table) {
#if HWY_TARGET == HWY_AVX3
  // The index is the lowest four bits: of a field of three, the table repeats itself.
  const hn::Indices512<float> indices{hn::ShiftRight<kBit>(words).raw};
  return hn::TableLookupLanes(table, indices);
#else
  const Ints ints;
  const auto high = hn::BitCast(ints, hn::ShiftLeft<32 - kBits - kBit>(words));
  return hn::ConvertTo(Floats(), hn::ShiftRight<32 - kBits>(high));
#endif
}

template <int kBits>
HWY_INLINE Vec code_table() {
  alignas(64) static constexpr float kSigned4[16] = {0,  1,  2,  3,  4,  5,  6,  7,
                                                     -8, -7, -6, -5, -4, -3, -2, -1};
  alignas(64) static constexpr float kSigned3[16] = {0, 1, 2, 3, -4, -3, -2, -1,
                                                     0, 1, 2, 3, -4, -3, -2, -1};
  return hn::LoadU(Floats(), kBits == 4 ? kSigned4 : kSigned3);
}

HWY_INLINE WordVec load_words(const std::byte* from) {
  return hn::LoadU(Words(), reinterpret_cast<const std::uint32_t*>(from));
}

// A reader of one format: `kInputs` inputs stand in `kBytes` of a panel, of which those of a vector
// of outputs begin at output * kOutputBytes. value<j>() is the j-th input's weights, or codes where
// the format has scales.
struct F32Lines {
  static constexpr bool kPrefetched = true;
  static constexpr int kInputs = 2, kBytes = 256, kOutputBytes = 4;
  static HWY_INLINE Vec table() { return hn::Zero(Floats()); }
  template <int j>
  static HWY_INLINE Vec value(const std::byte* from, Vec /*table*/) {
    return hn::LoadU(Floats(), reinterpret_cast<const float*>(from) + j * kPanel);
  }
};

// What unpack_lines leaves in L1.
struct UnpackedLines : F32Lines {
  static constexpr bool kPrefetched = false;
};

struct Bf16Lines {
  static constexpr bool kPrefetched = true;
  static constexpr int kInputs = 2, kBytes = 128, kOutputBytes = 4;
  static HWY_INLINE Vec table() { return hn::Zero(Floats()); }
  template <int j>
  static HWY_INLINE Vec value(const std::byte* from, Vec /*table*/) {
    const Unit pair = widen(load_words(from));
    return j == 0 ? pair.a : pair.b;
  }
};

struct W8Lines {
  static constexpr bool kPrefetched = false;
  static constexpr int kInputs = 4, kBytes = 128, kOutputBytes = 1;
  static HWY_INLINE Vec table() { return hn::Zero(Floats()); }
  template <int j>
  static HWY_INLINE Vec value(const std::byte* from, Vec /*table*/) {
    const Ints ints;
    const hn::Rebind<std::int8_t, Ints> bytes;
    const auto codes = hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(from) + j * kPanel);
    return hn::ConvertTo(Floats(), hn::PromoteTo(ints, codes));
  }
};

struct W4Lines {
  static constexpr bool kPrefetched = false;
  static constexpr int kInputs = 8, kBytes = 128, kOutputBytes = 4;
  static HWY_INLINE Vec table() { return code_table<4>(); }
  template <int j>
  static HWY_INLINE Vec value(const std::byte* from, Vec table) {
    return field_value<4, 4 * j>(load_words(from), table);
  }
};

struct W3Lines {
  static constexpr bool kPrefetched = false;
  static constexpr int kInputs = 32, kBytes = 384, kOutputBytes = 4;
  static HWY_INLINE Vec table() { return code_table<3>(); }
  template <int j>
  static HWY_INLINE Vec value(const std::byte* from, Vec table) {
    constexpr int kWord = 3 * j / 32, kBit = 3 * j % 32;
    const WordVec low = load_words(from + kWord * kPanel * 4);
    if constexpr (kBit <= 29) {
      return field_value<3, kBit>(low, table);
    } else {
      const WordVec high = load_words(from + (kWord + 1) * kPanel * 4);
      const WordVec joined = hn::Or(hn::ShiftRight<kBit>(low), hn::ShiftLeft<32 - kBit>(high));
      return field_value<3, 0>(joined, table);
    }
  }
};

// Scales or offsets of a vector of outputs.
HWY_INLINE Vec load_scales(const std::byte* halves) {
  const Floats floats;
  const hn::Rebind<hwy::float16_t, Floats> small;
  return hn::PromoteTo(floats, hn::LoadU(small, reinterpret_cast<const hwy::float16_t*>(halves)));
}

template <class Lines, int... j>
HWY_INLINE void store_values(const std::byte* line, Vec table, float* to,
                             std::integer_sequence<int, j...> /*inputs*/) {
  (hn::StoreU(Lines::template value<j>(line, table), Floats(), to + j * kPanel), ...);
}

// A panel's next `inputs` as f32 [inputs][32]. Asks for what comes next, so that memory works on
// while these are multiplied.
template <class Lines>
void unpack_lines(const std::byte* from, std::int64_t inputs, float* to) {
  constexpr int kAhead = 4096, kCacheLine = 64;
  const Vec table = Lines::table();
  for (std::int64_t i = 0; i < inputs; i += Lines::kInputs) {
    for (int byte = 0; byte < Lines::kBytes; byte += kCacheLine) {
      hwy::Prefetch(from + kAhead + byte);
    }
    for (int v = 0; v < kPanelVecs; ++v) {
      store_values<Lines>(from + v * kLanes * Lines::kOutputBytes, table, to + v * kLanes,
                          std::make_integer_sequence<int, Lines::kInputs>());
    }
    from += Lines::kBytes;
    to += Lines::kInputs * kPanel;
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

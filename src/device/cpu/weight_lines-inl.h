// Unpacks the formats of a packed matrix to vectors of f32 or pairs of bf16. Compiled once for each
// instruction set.

#if defined(PROTEAN_DEVICE_CPU_WEIGHT_LINES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_WEIGHT_LINES_INL_H_
#undef PROTEAN_DEVICE_CPU_WEIGHT_LINES_INL_H_
#else
#define PROTEAN_DEVICE_CPU_WEIGHT_LINES_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "device/cpu/dot-inl.h"
#include "device/cpu/lanes-inl.h"
#include "device/cpu/packed_matrix.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr int kPanel = PackedMatrix::kPanel;
constexpr int kPanelVecs = kPanel / kLanes;

// Returns the signed field of kBits at kBit of every word, as f32; higher bits are ignored. Uses a
// table if 16 floats fit one register, else extends the sign.
template <int kBits, int kBit>
HWY_INLINE Vec field_value(WordVec words, [[maybe_unused]] Vec table) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kBits <= 4) {
    // The index is the lowest four bits. The table of a 3-bit field is repeated for the fourth bit.
    const hn::Indices512<float> indices{hn::ShiftRight<kBit>(words).raw};
    return hn::TableLookupLanes(table, indices);
  }
#endif
  const auto high = hn::BitCast(Ints(), hn::ShiftLeft<32 - kBits - kBit>(words));
  return hn::ConvertTo(Floats(), hn::ShiftRight<32 - kBits>(high));
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

// Readers of formats. A line of kInputs inputs takes kBytes of a panel, and the part of an output
// begins at output * kOutputBytes. value<j>() returns the weights of input j, or its codes if the
// format has scales. pair_of<Lines, j>() returns those of inputs 2j and 2j + 1 as bf16, which is
// exact.
struct F32Lines {
  static constexpr bool kPrefetched = true;
  static constexpr int kInputs = 2, kBytes = 256, kOutputBytes = 4;
  static HWY_INLINE Vec table() { return hn::Zero(Floats()); }
  template <int j>
  static HWY_INLINE Vec value(const std::byte* from, Vec /*table*/) {
    return hn::LoadU(Floats(), reinterpret_cast<const float*>(from) + j * kPanel);
  }
};

// Reads the single inputs that unpack_lines() has written.
struct UnpackedLines : F32Lines {
  static constexpr bool kPrefetched = false;
};

struct Bf16Lines {
  static constexpr bool kPrefetched = true;
  static constexpr int kInputs = 2, kBytes = 128, kOutputBytes = 4;
  static HWY_INLINE Vec table() { return hn::Zero(Floats()); }
  template <int j>
  static HWY_INLINE Vec value(const std::byte* from, Vec /*table*/) {
    const TwoVecs pair = widen(load_words(from));
    return j == 0 ? pair.a : pair.b;
  }
};

// Reads 2:4 weights: a line of positions, then eight lines of two bf16 of four inputs.
struct TwoOfFourLines {
  static constexpr bool kPrefetched = false;
  static constexpr int kInputs = 32, kBytes = 9 * kPanel * 4, kOutputBytes = 4;
  static HWY_INLINE Vec table() { return hn::Zero(Floats()); }
  template <int four>
  static HWY_INLINE WordVec pair(const std::byte* from) {
    return load_words(from + (1 + four) * kPanel * 4);
  }
  template <int j>
  static HWY_INLINE Vec value(const std::byte* from, Vec /*table*/) {
    const Words words;
    const WordVec here = hn::Set(words, j % 4);
    const auto holds_it = [&](WordVec position) HWY_ATTR {
      return hn::RebindMask(Floats(), hn::Eq(hn::And(position, hn::Set(words, 3)), here));
    };
    const WordVec positions = load_words(from);
    const TwoVecs kept = widen(pair<j / 4>(from));
    return hn::IfThenElse(
        holds_it(hn::ShiftRight<2 * (j / 4)>(positions)), kept.a,
        hn::IfThenElseZero(holds_it(hn::ShiftRight<16 + 2 * (j / 4)>(positions)), kept.b));
  }
};

struct W8Lines {
  static constexpr bool kPrefetched = false;
  static constexpr int kInputs = 4, kBytes = 128, kOutputBytes = 4;
  static HWY_INLINE Vec table() { return hn::Zero(Floats()); }
  template <int j>
  static HWY_INLINE Vec value(const std::byte* from, Vec table) {
    return field_value<8, 8 * j>(load_words(from), table);
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

// Reads the pairs that unpack_lines() has written.
struct UnpackedPairs : Bf16Lines {
  static constexpr bool kPrefetched = false;
};

template <class Lines>
HWY_INLINE WordVec pair_table() {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<Lines, W4Lines>) {
    // Sixteen bf16, twice, because an index has five bits and a code only four.
    alignas(64) static constexpr std::uint16_t kSigned4[16] = {
        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
    const hn::Half<hn::Repartition<std::uint16_t, Words>> half;
    const auto once = hn::Load(half, kSigned4);
    return hn::BitCast(Words(), hn::Combine(hn::Repartition<std::uint16_t, Words>(), once, once));
  }
#endif
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<Lines, TwoOfFourLines>) {
    // For the positions of two weights (the low one in bits 0 and 1), the bytes of their word that
    // belong to inputs 0 and 1 of four; 0x80 makes zeros.
    static constexpr auto kBytesOf = [] {
      std::array<std::uint32_t, 16> table{};
      for (std::uint32_t positions = 0; positions < 16; ++positions) {
        for (std::uint32_t input = 0; input < 2; ++input) {
          const std::uint32_t bytes = (positions & 3) == input  ? 0x0100U
                                      : positions >> 2 == input ? 0x0302U
                                                                : 0x8080U;
          table[positions] |= bytes << (16 * input);
        }
      }
      return table;
    }();
    return hn::LoadU(Words(), kBytesOf.data());
  }
#endif
  return hn::BitCast(Words(), Lines::table());
}

#if HWY_TARGET == HWY_AVX3
// Returns inputs 2j and 2j + 1 of 2:4 weights: one shuffle of bytes in each word.
template <int j>
HWY_INLINE WordVec two_of_four_pair(const std::byte* from, WordVec table) {
  const Words words;
  const WordVec positions = load_words(from);
  const WordVec low = hn::And(hn::ShiftRight<2 * (j / 2)>(positions), hn::Set(words, 3));
  WordVec both = hn::OrAnd(low, hn::ShiftRight<14 + 2 * (j / 2)>(positions), hn::Set(words, 12));
  if constexpr (j % 2 == 1) {
    both = hn::Xor(both, hn::Set(words, 10));  // inputs 2 and 3 become 0 and 1
  }
  const hn::Indices512<std::uint32_t> index{both.raw};
  // A shuffle counts bytes from the beginning of 128 bits.
  alignas(16) static constexpr std::uint32_t kWordAt[4] = {0, 0x04040404, 0x08080808, 0x0c0c0c0c};
  const WordVec bytes = hn::Or(hn::TableLookupLanes(table, index), hn::LoadDup128(words, kWordAt));
  const WordVec pair = TwoOfFourLines::pair<j / 2>(from);
  return WordVec{_mm512_shuffle_epi8(pair.raw, bytes.raw)};
}

// Returns the two of four inputs of each output whose weights are kept in `pair<four>()`. The
// inputs are two pairs; of an index only the lowest two bits count, since they repeat.
template <int four>
HWY_INLINE WordVec kept_inputs(WordVec positions, std::uint32_t first, std::uint32_t second) {
  const Words words;
  const WordVec fours = hn::OddEven(hn::Set(words, second), hn::Set(words, first));
  const WordVec index = hn::ShiftRight<2 * four>(positions);
  return WordVec{_mm512_permutexvar_epi16(index.raw, fours.raw)};
}
#endif

template <class Lines, int j>
HWY_INLINE WordVec pair_of(const std::byte* from, WordVec table) {
  const Words words;
  if constexpr (std::is_base_of_v<Bf16Lines, Lines>) {
    return load_words(from);
  } else {
#if HWY_TARGET == HWY_AVX3
    if constexpr (std::is_same_v<Lines, TwoOfFourLines>) {
      return two_of_four_pair<j>(from, table);
    }
    if constexpr (std::is_same_v<Lines, W4Lines>) {
      // Looks up both codes at once. Each is in the lowest bits of its half.
      const WordVec codes = load_words(from);
      const WordVec even = hn::ShiftRight<8 * j>(codes);
      constexpr int kUp = 12 - 8 * j;
      const WordVec odd = [&]() HWY_ATTR {
        if constexpr (kUp >= 0) {
          return hn::ShiftLeft<kUp>(codes);
        } else {
          return hn::ShiftRight<-kUp>(codes);
        }
      }();
      const hn::Repartition<std::uint16_t, Words> halves;
      const auto index = hn::OddEven(hn::BitCast(halves, odd), hn::BitCast(halves, even));
      return WordVec{_mm512_permutexvar_epi16(index.raw, table.raw)};
    }
#endif
    const Vec values = hn::BitCast(Floats(), table);
    const Vec even = Lines::template value<2 * j>(from, values);
    const Vec odd = Lines::template value<2 * j + 1>(from, values);
    return hn::Or(hn::ShiftRight<16>(hn::BitCast(words, even)), hn::BitCast(words, odd));
  }
}

// Loads the scales or offsets of a vector of outputs.
HWY_INLINE Vec load_scales(const std::byte* halves) {
  const Floats floats;
  const hn::Rebind<hwy::float16_t, Floats> small;
  return hn::PromoteTo(floats, hn::LoadU(small, reinterpret_cast<const hwy::float16_t*>(halves)));
}

// Two ways to multiply weights with inputs: single f32, or pairs of bf16 in a word. Both give the
// same bits: a chain of fused multiply-adds with the odd input of each pair first.
struct Singles {
  using X = float;
  using Table = Vec;
  static constexpr int kInputs = 1;
  using Unpacked = UnpackedLines;
  template <class Lines>
  static HWY_INLINE Table table() {
    return Lines::table();
  }
  template <class Lines, int j>
  static HWY_INLINE Vec weights(const std::byte* from, Table table) {
    return Lines::template value<j>(from, table);
  }
  static HWY_INLINE Vec input(X x) { return hn::Set(Floats(), x); }
  static HWY_INLINE void add(Vec& sums, Vec input, Vec weights) {
    sums = hn::MulAdd(input, weights, sums);
  }
  static constexpr int in_turn(int step) { return step ^ 1; }
};

struct Pairs {
  using X = std::uint32_t;
  using Table = WordVec;
  static constexpr int kInputs = 2;
  using Unpacked = UnpackedPairs;
  template <class Lines>
  static HWY_INLINE Table table() {
    return pair_table<Lines>();
  }
  template <class Lines, int j>
  static HWY_INLINE WordVec weights(const std::byte* from, Table table) {
    return pair_of<Lines, j>(from, table);
  }
  static HWY_INLINE WordVec input(X x) { return hn::Set(Words(), x); }
  static HWY_INLINE void add(Vec& sums, WordVec input, WordVec weights) {
    add_bf16_pairs(sums, input, weights);
  }
  static constexpr int in_turn(int step) { return step; }
};

template <class Math, class Lines, int... j>
HWY_INLINE void store_weights(const std::byte* line, typename Math::Table table,
                              typename Math::X* to, std::integer_sequence<int, j...> /*steps*/) {
  const hn::Rebind<typename Math::X, Floats> d;
  (hn::StoreU(Math::template weights<Lines, j>(line, table), d, to + j * kPanel), ...);
}

// Unpacks the next `inputs` of a panel to [inputs / Math::kInputs][32]. If kAsks, prefetches the
// lines after them, so that they are loaded while these are multiplied.
template <class Math, class Lines, bool kAsks = true>
void unpack_lines(const std::byte* from, std::int64_t inputs, typename Math::X* to) {
  constexpr int kAhead = 4096, kCacheLine = 64;
  constexpr int kSteps = Lines::kInputs / Math::kInputs;
  const auto table = Math::template table<Lines>();
  for (std::int64_t i = 0; i < inputs; i += Lines::kInputs) {
    for (int byte = 0; kAsks && byte < Lines::kBytes; byte += kCacheLine) {
      hwy::Prefetch(from + kAhead + byte);
    }
    for (int v = 0; v < kPanelVecs; ++v) {
      store_weights<Math, Lines>(from + v * kLanes * Lines::kOutputBytes, table, to + v * kLanes,
                                 std::make_integer_sequence<int, kSteps>());
    }
    from += Lines::kBytes;
    to += kSteps * kPanel;
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

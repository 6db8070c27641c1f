// Unpacks the codes of a packed matrix to words of small integers, which are multiplied with words
// of activations (int8_rows.h). Compiled once for each instruction set.

#if defined(PROTEAN_DEVICE_CPU_WORD_LINES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_WORD_LINES_INL_H_
#undef PROTEAN_DEVICE_CPU_WORD_LINES_INL_H_
#else
#define PROTEAN_DEVICE_CPU_WORD_LINES_INL_H_
#endif

#include "device/cpu/int8_rows.h"
#include "device/cpu/weight_lines-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Adds `products` to `sums` at once. Compilers would delay integer additions to the end of a tile's
// step and run out of registers.
HWY_INLINE void add_now(IntVec& sums, IntVec products) {
  sums = hn::Add(sums, products);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  asm volatile("" : "+v"(sums.raw));
#endif
}

// Adds the products of the bytes of two words to `sums`. The bytes of `a` are unsigned, those of
// `b` signed. The four products of bytes 0 and 1 are added in 16 bits, and so are those of bytes 2
// and 3.
HWY_INLINE void add_byte_eights(IntVec& sums, const WordVec* a, const WordVec* b) {
#if HWY_TARGET == HWY_AVX2
  const __m256i fours = _mm256_add_epi16(_mm256_maddubs_epi16(a[0].raw, b[0].raw),
                                         _mm256_maddubs_epi16(a[1].raw, b[1].raw));
  add_now(sums, IntVec{_mm256_madd_epi16(fours, _mm256_set1_epi16(1))});
#elif HWY_TARGET == HWY_AVX3
  const __m512i fours = _mm512_add_epi16(_mm512_maddubs_epi16(a[0].raw, b[0].raw),
                                         _mm512_maddubs_epi16(a[1].raw, b[1].raw));
  add_now(sums, IntVec{_mm512_madd_epi16(fours, _mm512_set1_epi16(1))});
#else
  add_byte_fours(sums, a[0], b[0]);
  add_byte_fours(sums, a[1], b[1]);
#endif
}

// Adds the products of the bytes of one word to `sums`. Two products are added in 16 bits.
HWY_INLINE void add_byte_pairs(IntVec& sums, WordVec a, WordVec b) {
#if HWY_TARGET == HWY_AVX2
  const __m256i pairs = _mm256_maddubs_epi16(a.raw, b.raw);
  add_now(sums, IntVec{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))});
#elif HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(a.raw, b.raw);
  add_now(sums, IntVec{_mm512_madd_epi16(pairs, _mm512_set1_epi16(1))});
#else
  add_byte_fours(sums, a, b);
#endif
}

// Readers of formats, as in weight_lines-inl.h. A line has kWords words of every output; each has
// as many inputs as a word of activations. begin() returns the initial sums of a group, from the
// sum of its activations and the kBytesBefore bytes before its first line. input() broadcasts a
// word of activations. add() adds the products of a line to sums.
template <int kMiddle>  // words hold the signed code plus kMiddle
struct SignedInputs {
  static constexpr int kBytesBefore = 0;
  static HWY_INLINE IntVec begin(const std::byte* /*from*/, std::int32_t total) {
    return hn::Mul(hn::Set(Ints(), total), hn::Set(Ints(), -kMiddle));
  }
  static HWY_INLINE WordVec input(std::uint32_t word) { return hn::Set(Words(), word); }
};

struct W8Words : SignedInputs<0> {
  static constexpr int kInputs = 4, kBytes = 128, kOutputBytes = 4;
  static constexpr int kWords = 2, kWordInputs = 2;

  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
#if HWY_TARGET == HWY_SCALAR
    const Words words;
    const auto low = hn::BitCast(words, signed_field<8, kWord>(load_words(from)));
    const auto high = hn::BitCast(words, signed_field<8, 2 + kWord>(load_words(from)));
    return hn::Or(hn::And(low, hn::Set(words, 0xffffU)), hn::ShiftLeft<16>(high));
#else
    const hn::Repartition<std::int16_t, Words> halves;
    const auto codes = hn::BitCast(halves, load_words(from));
    return hn::BitCast(Words(), hn::ShiftRight<8>(kWord == 0 ? hn::ShiftLeft<8>(codes) : codes));
#endif
  }

  static HWY_INLINE void add(IntVec& sums, const WordVec* weights, const WordVec* x) {
    add_word(sums, weights[0], x[0]);
    add_word(sums, weights[1], x[1]);
  }

  // Assembly, because compilers insert a move in every second pair of these instructions, which
  // alone use all issue slots of a core.
  static HWY_INLINE void add_word(IntVec& sums, WordVec weights, WordVec x) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    IntVec products;
    asm volatile(
        "vpmaddwd %2, %3, %1\n\t"
        "vpaddd %1, %0, %0"
        : "+v"(sums.raw), "=&v"(products.raw)
        : "v"(weights.raw), "v"(x.raw));
#else
    add_now(sums, hn::Mul(signed_field<16, 0>(weights), signed_field<16, 0>(x)));
    add_now(sums, hn::Mul(signed_field<16, 1>(weights), signed_field<16, 1>(x)));
#endif
  }
};

// Reads w8 for the dot instruction.
struct W8Dot : SignedInputs<128> {
  static constexpr int kInputs = 4, kBytes = 128, kOutputBytes = 4;
  static constexpr int kWords = 1, kWordInputs = 4;

  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    return hn::Xor(load_words(from), hn::Set(Words(), 0x80808080U));
  }
  static HWY_INLINE void add(IntVec& sums, const WordVec* weights, const WordVec* x) {
    add_byte_fours(sums, weights[0], x[0]);
  }
};

// Reads w8 for few rows of 7-bit activations, which are stored with kSevensMiddle added. Subtracts
// it again and makes codes unsigned: they are at most 255, and two products fit in 16 bits.
struct W8Sevens : W8Dot {
  static HWY_INLINE WordVec input(std::uint32_t word) {
    static_assert(kSevensMiddle == 0x40);
    return hn::Set(Words(), (word + 0x40404040U) ^ 0x80808080U);  // subtracts 0x40 from each byte
  }
  static HWY_INLINE void add(IntVec& sums, const WordVec* weights, const WordVec* x) {
    add_byte_pairs(sums, weights[0], x[0]);
  }
};

struct W4Words : SignedInputs<8> {
  static constexpr int kInputs = 8, kBytes = 128, kOutputBytes = 4;
  static constexpr int kWords = 2, kWordInputs = 4;

  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    const Words words;
    const auto codes = hn::Xor(load_words(from), hn::Set(words, 0x88888888U));
    return hn::And(kWord == 0 ? codes : hn::ShiftRight<4>(codes), hn::Set(words, 0x0f0f0f0fU));
  }

  // Codes are at most 15 and activations at most 127, so four products fit in 16 bits.
  static HWY_INLINE void add(IntVec& sums, const WordVec* weights, const WordVec* x) {
    add_byte_eights(sums, weights, x);
  }
};

struct W4Dot : W4Words {
  static HWY_INLINE void add(IntVec& sums, const WordVec* weights, const WordVec* x) {
    add_byte_fours(sums, weights[0], x[0]);
    add_byte_fours(sums, weights[1], x[1]);
  }
};

// Reads the words that unpack_words() has written.
template <class Lines>
struct UnpackedWords : Lines {
  static constexpr int kBytes = Lines::kWords * kPanel * 4, kOutputBytes = 4;
  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    return load_words(from + std::ptrdiff_t{kWord} * kPanel * 4);
  }
};
// Reads one word at a time, to use fewer registers.
template <>
struct UnpackedWords<W8Words> : W8Words {
  static constexpr int kInputs = 2, kWords = 1;
  static constexpr int kBytes = kPanel * 4;
  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    return load_words(from);
  }
  static HWY_INLINE void add(IntVec& sums, const WordVec* weights, const WordVec* x) {
    add_word(sums, weights[0], x[0]);
  }
};

// For many rows, activations stay unsigned and codes signed; the limit on code sums
// (quantized_rows.h) makes four products fit in 16 bits. Before the words stands the correction for
// the added middle: -kSevensMiddle times the sum of the codes.
template <>
struct UnpackedWords<W8Sevens> {
  static constexpr int kInputs = 8, kWords = 2;
  static constexpr int kBytes = 2 * kPanel * 4, kBytesBefore = kPanel * 4;
  static HWY_INLINE IntVec begin(const std::byte* from, std::int32_t /*total*/) {
    return hn::BitCast(Ints(), load_words(from));
  }
  static HWY_INLINE WordVec input(std::uint32_t word) { return hn::Set(Words(), word); }
  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    return load_words(from + std::ptrdiff_t{kWord} * kPanel * 4);
  }
  static HWY_INLINE void add(IntVec& sums, const WordVec* weights, const WordVec* x) {
    add_byte_eights(sums, x, weights);
  }
};

constexpr std::int64_t kCacheLine = 64;
HWY_INLINE void prefetch(const std::byte* codes, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += kCacheLine) {
    hwy::Prefetch(codes + i);
  }
}

constexpr int kAhead = 4096;  // bytes

// Unpacks the next `inputs` of a panel. Prefetches the codes after them, so that they are loaded
// while these are multiplied.
template <class Lines>
void unpack_words(const std::byte* from, std::int64_t inputs, std::uint32_t* to) {
  for (std::int64_t i = 0; i < inputs; i += Lines::kInputs) {
    prefetch(from + kAhead, Lines::kBytes);
    for (int v = 0; v < kPanelVecs; ++v) {
      const std::byte* const line = from + std::ptrdiff_t{v} * kLanes * Lines::kOutputBytes;
      hn::StoreU(Lines::template word<0>(line), Words(), to + v * kLanes);
      if constexpr (Lines::kWords == 2) {
        hn::StoreU(Lines::template word<1>(line), Words(), to + kPanel + v * kLanes);
      }
    }
    from += Lines::kBytes;
    to += Lines::kWords * kPanel;
  }
}
template <>
inline void unpack_words<W8Sevens>(const std::byte* from, std::int64_t inputs, std::uint32_t* to) {
  const WordVec middle = hn::Set(Words(), kSevensMiddle * kEachByte);
  IntVec above[kPanelVecs];
  for (IntVec& sums : above) {
    sums = hn::Zero(Ints());
  }
  std::uint32_t* word = to + kPanel;
  for (std::int64_t i = 0; i < inputs; i += W8Sevens::kInputs, word += kPanel) {
    prefetch(from + kAhead, W8Sevens::kBytes);
    for (int v = 0; v < kPanelVecs; ++v) {
      const WordVec codes = load_words(from + std::ptrdiff_t{v} * kLanes * 4);
      add_byte_pairs(above[v], middle, codes);
      hn::StoreU(codes, Words(), word + v * kLanes);
    }
    from += W8Sevens::kBytes;
  }
  for (int v = 0; v < kPanelVecs; ++v) {
    hn::StoreU(hn::BitCast(Words(), hn::Neg(above[v])), Words(), to + v * kLanes);
  }
}

// Groups between the one that is prefetched and the one that is multiplied. With 1, codes would
// arrive too late.
constexpr std::int64_t kGroupsAhead = 2;
// Returns the bytes of a group's codes that each block of rows prefetches: the codes of a whole
// group are more than a core can have outstanding at once.
template <class Lines>
constexpr std::int64_t prefetched_bytes(std::int64_t inputs, int blocks) {
  const std::int64_t lines = inputs / Lines::kInputs * Lines::kBytes / kCacheLine;
  return (lines + blocks - 1) / blocks * kCacheLine;
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

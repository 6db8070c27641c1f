// How codes of a packed matrix become words of small integers that are multiplied with such words
// of activations (int8_rows.h), compiled once per instruction set.

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

// Adds to sums at once: compilers put off additions of integers to the end of a tile's step, and
// run out of registers.
HWY_INLINE void add_now(IntVec& sums, IntVec products) {
  sums = hn::Add(sums, products);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  asm volatile("" : "+v"(sums.raw));
#endif
}

// sums + a * b over the bytes of two words, those of a without and those of b with a sign: the
// products of bytes 0 and 1 of both words are added in 16 bits, and so are those of 2 and 3.
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

// The same of one word, of which two products fit 16 bits.
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

// A reader of one format, as in weight_lines-inl.h: a line is kWords words of every output, each of
// as many inputs as a word of activations has. `begin` is what sums of a group begin with, given
// what its activations add up to and the first line's place, where something may stand before the
// line; `input` is a word of activations in every lane; `add` adds a line's products to sums.
template <int kMiddle>  // what words hold above the signed code
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

  // Written out, because compilers add a move to every other of these, and there is no room for it:
  // the two instructions alone fill what a core can issue.
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

// The same for the dot instruction.
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

// Activations of 7 bits, which come kSevensMiddle above themselves. Of few rows they are brought
// back: a code above the lowest is at most 255, and two products fit 16 bits.
struct W8Sevens : W8Dot {
  static HWY_INLINE WordVec input(std::uint32_t word) {
    static_assert(kSevensMiddle == 0x40);
    return hn::Set(Words(), (word + 0x40404040U) ^ 0x80808080U);  // of each byte 0x40 less
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

  // Codes are at most 15 and activations 127: four products fit 16 bits.
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

// What unpack_words leaves in L1: each word of a line on its own.
template <class Lines>
struct UnpackedWords : Lines {
  static constexpr int kBytes = Lines::kWords * kPanel * 4, kOutputBytes = 4;
  template <int kWord>
  static HWY_INLINE WordVec word(const std::byte* from) {
    return load_words(from + std::ptrdiff_t{kWord} * kPanel * 4);
  }
};
// Here one is multiplied before the next, for registers.
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

// Of many rows they stay as they are, against signed codes, of which four products fit 16 bits
// (quantized_rows.h). Before the words comes what that is too much, negated: kSevensMiddle times
// what the codes add up to.
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

// A panel's next `inputs`. Asks for what comes next, so that memory works on while these are
// multiplied.
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

// The next group's codes would come too late.
constexpr std::int64_t kGroupsAhead = 2;
// The share that each of some blocks of rows has in asking for a group's codes: all at once they
// are more than a core can wait for while it works on.
template <class Lines>
constexpr std::int64_t prefetched_bytes(std::int64_t inputs, int blocks) {
  const std::int64_t lines = inputs / Lines::kInputs * Lines::kBytes / kCacheLine;
  return (lines + blocks - 1) / blocks * kCacheLine;
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

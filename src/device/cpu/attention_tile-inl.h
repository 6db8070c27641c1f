// Attention over 64 positions of one KV head: packs keys and values for a small matrix product, and
// computes it. Compiled once for each instruction set.
//
// Rows of the store are multiplied as single f32, or in pairs: two bf16 in the 32 bits of a float,
// with one instruction. Pairs of keys are adjacent in head_dim, pairs of values are those of
// positions 2i and 2i + 1. Packed pairs have the layout of AMX tiles (attention_amx-inl.h).

#if defined(PROTEAN_DEVICE_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_ATTENTION_TILE_INL_H_
#undef PROTEAN_DEVICE_CPU_ATTENTION_TILE_INL_H_
#else
#define PROTEAN_DEVICE_CPU_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/cpu/bf16.h"
#include "device/cpu/dot-inl.h"
#include "device/cpu/lanes-inl.h"
#include "device/cpu/query_spans.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Positions between two updates of the running maximum. Tiles begin at multiples of this.
constexpr int kTile = 64;
static_assert(kTile % kTwoVecs == 0);

// Returns the lanes of the vector at `at` that are within `see`.
HWY_INLINE hn::Mask<Floats> seen_lanes(PositionRange see, int at) {
  const auto first = [&](int count) HWY_ATTR {
    return hn::FirstN(Floats(), static_cast<std::size_t>(std::max(count, 0)));
  };
  return hn::AndNot(first(see.begin - at), first(see.end - at));
}

// Replaces products of a query and the keys that it sees by those whose scores, `scale` times the
// product, are capped. The lanes of a vector beyond what the query sees may change too.
HWY_NOINLINE inline void cap_scores(PositionRange see, float scale, float cap, float* products) {
  const Floats floats;
  const Vec inner = hn::Set(floats, scale / cap);
  const Vec outer = hn::Set(floats, cap / scale);
  for (int at = see.begin / kLanes * kLanes; at < see.end; at += kLanes) {
    const Vec product = hn::Load(floats, products + at);
    hn::Store(hn::Mul(tanh(floats, hn::Mul(product, inner)), outer), floats, products + at);
  }
}

// A stored bf16 that is multiplied in pairs.
struct Bf16Pair {
  std::uint16_t bits = 0;
};
// A stored byte that is multiplied as one of a pair of bf16, which hold it exactly.
struct Int8Pair {
  std::int8_t value = 0;
};
// A stored byte that is multiplied as one of four in a word.
struct Int8Four {
  std::int8_t value = 0;
};
template <class Stored>
constexpr bool kPaired = std::is_same_v<Stored, Bf16Pair> || std::is_same_v<Stored, Int8Pair>;
// The positions of one multiply-add of weights and values.
template <class Stored>
constexpr int kPositions = kPaired<Stored> ? 2 : 1;

// Rounds consecutive floats to pairs of bf16.
HWY_INLINE Vec nearest_pairs(TwoVecs vecs) {
#if HWY_TARGET == HWY_AVX3
  Vec pairs;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs.raw) : "v"(vecs.b.raw), "v"(vecs.a.raw));
  return pairs;
#else
  alignas(64) float plain[kTwoVecs];
  hn::Store(vecs.a, Floats(), plain);
  hn::Store(vecs.b, Floats(), plain + kLanes);
  const TwoVecs pair = load_sums<std::uint16_t>(plain);
  const auto first = hn::BitCast(Words(), round_bf16(Floats(), pair.a));
  const auto second = hn::BitCast(Words(), round_bf16(Floats(), pair.b));
  return hn::BitCast(Floats(), hn::Or(hn::ShiftRight<16>(first), second));
#endif
}

template <class Stored>
HWY_INLINE void multiply_add(Vec& sums, Vec factor, Vec elements) {
  if constexpr (kPaired<Stored>) {
    add_bf16_pairs(sums, hn::BitCast(Words(), factor), hn::BitCast(Words(), elements));
  } else {
    sums = hn::MulAdd(factor, elements, sums);
  }
}

// Which elements of a pair are used. The other may be any bits.
enum class Counts { kAll, kFirst, kSecond };
template <Counts kCounts>
HWY_INLINE Vec counting(Vec elements) {
  if constexpr (kCounts == Counts::kAll) {
    return elements;
  } else {
    const auto mask = hn::Set(Words(), kCounts == Counts::kFirst ? 0x0000ffffU : 0xffff0000U);
    return hn::BitCast(Floats(), hn::And(hn::BitCast(Words(), elements), mask));
  }
}

// The product c[rows][columns] = c * rescale + a[rows][depth] * b[depth][columns]. Each element is
// one chain of multiply-adds in ascending order of depth, so its bits depend only on its row and
// column.
struct Product {
  const float* a = nullptr;
  int a_stride = 0;
  const float* b = nullptr;
  int b_stride = 0;
  int depth = 0;
  float* c = nullptr;
  int c_stride = 0;
  const float* rescale = nullptr;  // one for each row; if null, c begins at zero
  // If begins_odd, only the second element of the first pair of b is used; if ends_odd, only the
  // first element of the last pair.
  bool begins_odd = false;
  bool ends_odd = false;
};

// The steps of a product: whole pairs, and perhaps half a pair at the begin and the end.
struct Steps {
  bool begins_odd = false;
  bool ends_odd = false;
  int whole = 0;
};
template <class Stored>
HWY_INLINE Steps steps_of(const Product& product) {
  if (!kPaired<Stored>) {
    return {.whole = product.depth};
  }
  const int halves = (product.begins_odd ? 1 : 0) + (product.ends_odd ? 1 : 0);
  return {product.begins_odd, product.ends_odd, product.depth - halves};
}

// Registers for sums, which leave some for operands, and the most rows of a block.
constexpr int kSumRegisters = kLanes == 16 ? 24 : 12;
constexpr int kMostRows = kSumRegisters / 2;

// Returns the vectors in each row of a block, a power of two.
constexpr int block_columns(int rows) {
  int columns = 2;
  while (columns < 8 && 2 * columns * rows <= kSumRegisters) {
    columns *= 2;
  }
  return columns;
}

template <int R, int U, class Stored, Counts kCounts>
HWY_INLINE void multiply_step(const float* a, std::ptrdiff_t a_stride, const float* b,
                              Vec (&sums)[R][U]) {
  const Floats floats;
  Vec columns[U];
  HWY_UNROLL(16)
  for (int u = 0; u < U; ++u) {
    columns[u] = counting<kCounts>(hn::LoadU(floats, b + u * kLanes));
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    const Vec factor = hn::Set(floats, a[r * a_stride]);
    HWY_UNROLL(16)
    for (int u = 0; u < U; ++u) {
      multiply_add<Stored>(sums[r][u], factor, columns[u]);
    }
  }
}

template <int R, int U, class Stored>
HWY_NOINLINE void multiply_block(const Product& product, int row, int column) {
  const Floats floats;
  const std::ptrdiff_t stride = product.a_stride;
  const float* a = product.a + row * stride;
  const float* b = product.b + column;
  float* const c = product.c + std::ptrdiff_t{row} * product.c_stride + column;
  Vec sums[R][U];
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int u = 0; u < U; ++u) {
      sums[r][u] =
          product.rescale == nullptr
              ? hn::Zero(floats)
              : hn::Mul(hn::LoadU(floats, c + std::ptrdiff_t{r} * product.c_stride + u * kLanes),
                        hn::Set(floats, product.rescale[row + r]));
    }
  }
  const Steps steps = steps_of<Stored>(product);
  if (steps.begins_odd) {
    multiply_step<R, U, Stored, Counts::kSecond>(a, stride, b, sums);
    ++a;
    b += product.b_stride;
  }
  for (int k = 0; k < steps.whole; ++k) {
    multiply_step<R, U, Stored, Counts::kAll>(a, stride, b, sums);
    ++a;
    b += product.b_stride;
  }
  if (steps.ends_odd) {
    multiply_step<R, U, Stored, Counts::kFirst>(a, stride, b, sums);
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int u = 0; u < U; ++u) {
      hn::StoreU(sums[r][u], floats, c + std::ptrdiff_t{r} * product.c_stride + u * kLanes);
    }
  }
}

// Multiplies R rows in blocks of U vectors, and the rest in narrower blocks. `columns` are whole
// pairs of vectors.
template <int R, class Stored, int U = block_columns(R)>
void multiply_rows(const Product& product, int row, int column, int columns) {
  for (; column + U * kLanes <= columns; column += U * kLanes) {
    multiply_block<R, U, Stored>(product, row, column);
  }
  if constexpr (U > 2) {
    multiply_rows<R, Stored, U / 2>(product, row, column, columns);
  }
}

template <class Stored>
void multiply(const Product& product, int rows, int columns) {
  int row = 0;
  const auto next = [&](auto step, int count) {
    for (; row + count <= rows; row += count) {
      step(product, row, 0, columns);
    }
  };
  next(multiply_rows<kMostRows, Stored>, kMostRows);
  next(multiply_rows<4, Stored>, 4);
  next(multiply_rows<2, Stored>, 2);
  next(multiply_rows<1, Stored>, 1);
}

// Prefetches a row of the store. Blocks have any order in memory, so the hardware cannot predict
// the next.
HWY_INLINE void prefetch_row(const std::byte* row, std::int64_t bytes) {
  constexpr int kCacheLine = 64;
  for (std::int64_t i = 0; i < bytes; i += kCacheLine) {
    hwy::Prefetch(row + i);
  }
}

// Prefetches the rows that are read next, in proportion to the `bytes` that were read of each
// current row. `asked` rows were prefetched before; returns how many are now.
HWY_INLINE int prefetch_rows(const std::byte* const* next, int rows, int row_bytes, int bytes,
                             int asked) {
  for (; asked < rows && asked * row_bytes < bytes * rows; ++asked) {
    prefetch_row(next[asked], row_bytes);
  }
  return asked;
}

// The elements, pairs or fours in four bytes of a row.
template <class Stored>
constexpr int kPerWord = kPaired<Stored> || std::is_same_v<Stored, Int8Four>
                             ? 1
                             : 4 / static_cast<int>(sizeof(Stored));

// Returns element `which` of each word as f32, or the word.
template <class Stored>
HWY_INLINE Vec element_of(hn::Vec<Words> words, int which) {
  const Floats floats;
  if constexpr (kPerWord<Stored> == 1) {
    return hn::BitCast(floats, words);
  } else if constexpr (kPerWord<Stored> == 2) {
    const TwoVecs both = widen(words);
    return which == 0 ? both.a : both.b;
  } else {
    const hn::RebindToSigned<Floats> ints;
    const auto at_top = hn::ShiftLeftSame(hn::BitCast(ints, words), 24 - 8 * which);
    return hn::ConvertTo(floats, hn::ShiftRight<24>(at_top));
  }
}

#if HWY_TARGET != HWY_SCALAR
// Loads 16 bytes at `offset` of every fourth row, one row into each 128-bit block.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D words, const std::byte* const* rows, int offset) {
  if constexpr (hn::MaxLanes(D{}) == 4) {
    return hn::LoadU(words, reinterpret_cast<const std::uint32_t*>(rows[0] + offset));
#if HWY_TARGET == HWY_AVX3
  } else if constexpr (hn::MaxLanes(D{}) == 16) {
    // Masked broadcasts leave the shuffle units free for the following instructions.
    const auto load = [&](int row) HWY_ATTR {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset));
    };
    __m512i blocks = _mm512_zextsi128_si512(load(0));
    blocks = _mm512_mask_broadcast_i32x4(blocks, 0x00f0, load(4));
    blocks = _mm512_mask_broadcast_i32x4(blocks, 0x0f00, load(8));
    return hn::Vec<D>{_mm512_mask_broadcast_i32x4(blocks, 0xf000, load(12))};
#endif
  } else {
    const hn::Half<D> half;
    constexpr int kUpper = static_cast<int>(hn::MaxLanes(D{})) / 2;
    return hn::Combine(words, load_blocks(half, rows + kUpper, offset),
                       load_blocks(half, rows, offset));
  }
}

// Loads the four words at `offset` of kLanes rows and transposes them: to[i] has word i of all
// rows.
HWY_INLINE void load_words(const std::byte* const* rows, int offset, hn::Vec<Words> (&to)[4]) {
  const Words words;
  const hn::Repartition<std::uint64_t, Words> pairs;
  const auto r0 = load_blocks(words, rows, offset);
  const auto r1 = load_blocks(words, rows + 1, offset);
  const auto r2 = load_blocks(words, rows + 2, offset);
  const auto r3 = load_blocks(words, rows + 3, offset);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(words, r0, r1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(words, r2, r3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(words, r0, r1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(words, r2, r3));
  to[0] = hn::BitCast(words, hn::InterleaveLower(pairs, low01, low23));
  to[1] = hn::BitCast(words, hn::InterleaveUpper(pairs, low01, low23));
  to[2] = hn::BitCast(words, hn::InterleaveLower(pairs, high01, high23));
  to[3] = hn::BitCast(words, hn::InterleaveUpper(pairs, high01, high23));
}
#endif

// Transposes the keys of a tile to to[head_dim][kTile]. Prefetches `next`, the rows that are read
// next.
template <class Stored>
HWY_NOINLINE void pack_keys(const std::byte* const* rows, const std::byte* const* next,
                            int head_dim, float* to) {
#if HWY_TARGET == HWY_SCALAR
  (void)next;
  for (int t = 0; t < kTile; ++t) {
    const auto* const row = reinterpret_cast<const Stored*>(rows[t]);
    for (int i = 0; i < head_dim; i += kTwoVecs) {
      const TwoVecs vecs = load_two_vecs(row + i);
      to[i * kTile + t] = hn::GetLane(vecs.a);
      to[(i + 1) * kTile + t] = hn::GetLane(vecs.b);
    }
  }
#else
  constexpr int kBlockBytes = 16;
  const Floats floats;
  const int row_bytes = head_dim * static_cast<int>(sizeof(Stored));
  for (int key = 0; key < kTile; key += kLanes) {
    float* column = to + key;
    int asked = 0;
    for (int offset = 0; offset < row_bytes; offset += kBlockBytes) {
      hn::Vec<Words> words[4];
      load_words(rows + key, offset, words);
      // The last block of an int8 row may reach into the data after it in the slot.
      const int end = std::min(row_bytes - offset, kBlockBytes) / 4;
      HWY_UNROLL(4)
      for (int word = 0; word < 4; ++word) {
        if (word < end) {
          HWY_UNROLL(4)
          for (int i = 0; i < kPerWord<Stored>; ++i, column += kTile) {
            hn::StoreU(element_of<Stored>(words[word], i), floats, column);
          }
        }
      }
      asked = prefetch_rows(next + key, kLanes, row_bytes, offset + kBlockBytes, asked);
    }
  }
#endif
}

// Joins the upper halves of floats to pairs, which is exact for integers of a byte.
HWY_INLINE Vec join_pairs(Vec first, Vec second) {
  const Words words;
  return hn::BitCast(
      Floats(), hn::Or(hn::ShiftRight<16>(hn::BitCast(words, first)), hn::BitCast(words, second)));
}

// Loads kTwoVecs elements of the values at rows[0], or the first `count` and zeros. Pairs also have
// those of rows[1].
template <class Stored, bool kWhole>
HWY_INLINE TwoVecs load_values(const std::byte* const* rows, int from, int count) {
  if constexpr (std::is_same_v<Stored, Int8Pair>) {
    const auto load = [&](const std::byte* row) HWY_ATTR {
      const auto* const at = reinterpret_cast<const std::int8_t*>(row) + from;
      return kWhole ? load_two_vecs(at) : load_part(at, count);
    };
    const TwoVecs first = load(rows[0]), second = load(rows[1]);
    return {join_pairs(first.a, second.a), join_pairs(first.b, second.b)};
  } else if constexpr (kPaired<Stored>) {
    const Words words;
    const hn::Repartition<std::uint16_t, Words> halves;
    const auto load = [&](const std::byte* row) HWY_ATTR {
      const auto* const at = reinterpret_cast<const std::uint32_t*>(row) + from / 2;
      return kWhole ? hn::LoadU(words, at)
                    : hn::MaskedLoad(hn::FirstN(words, static_cast<std::size_t>(count / 2)), words,
                                     at);
    };
    const auto first = load(rows[0]), second = load(rows[1]);
    const auto join = [&](auto upper, auto lower) HWY_ATTR {
      const auto both = hn::OddEven(hn::BitCast(halves, upper), hn::BitCast(halves, lower));
      return hn::BitCast(Floats(), both);
    };
    return {join(hn::ShiftLeft<16>(second), first), join(second, hn::ShiftRight<16>(first))};
  } else {
    const auto* const row = reinterpret_cast<const Stored*>(rows[0]) + from;
    return kWhole ? load_two_vecs(row) : load_part(row, count);
  }
}

// Packs values to to[count][width] in the order of TwoVecs, where width is head_dim rounded up to
// whole pairs of vectors and padded with zeros. Pairs put two rows into one. Prefetches `next`.
template <class Stored>
HWY_NOINLINE void pack_values(const std::byte* const* rows, const std::byte* const* next, int count,
                              int head_dim, float* to) {
  const Floats floats;
  const int row_bytes = head_dim * static_cast<int>(sizeof(Stored));
  for (int t = 0; t < count; t += kPositions<Stored>) {
    HWY_UNROLL(2)
    for (int i = 0; i < kPositions<Stored>; ++i) {
      prefetch_row(next[t + i], row_bytes);
    }
    for (int i = 0; i < head_dim; i += kTwoVecs, to += kTwoVecs) {
      const TwoVecs vecs = i + kTwoVecs <= head_dim
                               ? load_values<Stored, true>(rows + t, i, kTwoVecs)
                               : load_values<Stored, false>(rows + t, i, head_dim - i);
      hn::StoreU(vecs.a, floats, to);
      hn::StoreU(vecs.b, floats, to + kLanes);
    }
  }
}

// Up to this many queries read keys and values straight from the store, each element once.
constexpr int kFewQueries = 8;

struct FewQueries {
  const float* q = nullptr;  // [R][width]
  int width = 0;
  int head_dim = 0;
  float* weights = nullptr;  // [R][kTile]
};

#if HWY_TARGET == HWY_SCALAR
inline float to_float(float value) {
  return value;
}
inline float to_float(std::uint16_t bf16) {
  return float_from(bf16);
}
inline float to_float(std::int8_t value) {
  return value;
}
#endif

// Returns the vectors of keys that are multiplied at once, so that independent chains hide the
// latency of multiply-adds.
constexpr int key_vectors(int rows) {
  return kLanes == 16 && rows <= 4 ? 2 : 1;
}

// Computes the scores of R queries with key_vectors(R) vectors of keys from `key` on, with the bits
// that multiply() gives for packed keys. Prefetches `next`.
template <int R, class Stored>
HWY_NOINLINE void score_keys(const FewQueries& few, const std::byte* const* rows,
                             const std::byte* const* next, int key) {
  const Floats floats;
  constexpr int G = key_vectors(R);
  Vec sums[R][G];
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(2)
    for (int g = 0; g < G; ++g) {
      sums[r][g] = hn::Zero(floats);
    }
  }
#if HWY_TARGET == HWY_SCALAR
  (void)next;
  for (int d = 0; d < few.head_dim; ++d) {
    const Vec element = hn::Set(floats, to_float(reinterpret_cast<const Stored*>(rows[key])[d]));
    for (int r = 0; r < R; ++r) {
      sums[r][0] = hn::MulAdd(hn::Set(floats, few.q[r * few.width + d]), element, sums[r][0]);
    }
  }
#else
  constexpr int kBlockBytes = 16;
  const int row_bytes = few.head_dim * static_cast<int>(sizeof(Stored));
  int asked = 0;
  const float* q = few.q;
  for (int offset = 0; offset < row_bytes; offset += kBlockBytes) {
    hn::Vec<Words> words[G][4];
    HWY_UNROLL(2)
    for (int g = 0; g < G; ++g) {
      load_words(rows + key + g * kLanes, offset, words[g]);
    }
    asked = prefetch_rows(next + key, G * kLanes, row_bytes, offset + kBlockBytes, asked);
    const int end = std::min(row_bytes - offset, kBlockBytes) / 4;
    HWY_UNROLL(4)
    for (int word = 0; word < 4; ++word) {
      if (word < end) {
        HWY_UNROLL(4)
        for (int i = 0; i < kPerWord<Stored>; ++i, ++q) {
          Vec elements[G];
          HWY_UNROLL(2)
          for (int g = 0; g < G; ++g) {
            elements[g] = element_of<Stored>(words[g][word], i);
          }
          HWY_UNROLL(8)
          for (int r = 0; r < R; ++r) {
            const Vec factor = hn::Set(floats, q[r * few.width]);
            HWY_UNROLL(2)
            for (int g = 0; g < G; ++g) {
              multiply_add<Stored>(sums[r][g], factor, elements[g]);
            }
          }
        }
      }
    }
  }
#endif
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(2)
    for (int g = 0; g < G; ++g) {
      hn::StoreU(sums[r][g], floats, few.weights + r * kTile + key + g * kLanes);
    }
  }
}

// One step of the depth for some pairs of vectors of the rows.
struct MixStep {
  int k = 0;
  int from = 0;
  int elements = 0;
};
template <int R, int U, bool kWhole, class Stored, Counts kCounts>
HWY_INLINE void mix_step(const Product& product, const std::byte* const* rows,
                         const std::byte* const* next, const MixStep& at, TwoVecs (&sums)[R][U]) {
  const Floats floats;
  const int t = at.k * kPositions<Stored>;
  HWY_UNROLL(2)
  for (int position = t; position < t + kPositions<Stored>; ++position) {
    const Stored* const ahead = reinterpret_cast<const Stored*>(next[position]) + at.from;
    constexpr int kPrefetched = 64 / static_cast<int>(sizeof(Stored));
    HWY_UNROLL(8)
    for (int i = 0; i < U * kTwoVecs; i += kPrefetched) {
      hwy::Prefetch(ahead + i);
    }
  }
  HWY_UNROLL(8)
  for (int u = 0; u < U; ++u) {
    const TwoVecs value =
        load_values<Stored, kWhole>(rows + t, at.from + u * kTwoVecs, at.elements);
    const Vec a = counting<kCounts>(value.a), b = counting<kCounts>(value.b);
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      const Vec weight = hn::Set(floats, product.a[r * kTile + at.k]);
      multiply_add<Stored>(sums[r][u].a, weight, a);
      multiply_add<Stored>(sums[r][u].b, weight, b);
    }
  }
}

// Adds weighted values to U pairs of vectors of the sums from `from` on, of which `elements` exist,
// with the bits that multiply() gives for packed values. product.b is not used.
template <int R, int U, bool kWhole, class Stored>
HWY_NOINLINE void mix_two_vecs(const Product& product, const std::byte* const* rows,
                               const std::byte* const* next, int from, int elements) {
  const Floats floats;
  TwoVecs sums[R][U];
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    const Vec rescale = hn::Set(floats, product.rescale[r]);
    HWY_UNROLL(8)
    for (int u = 0; u < U; ++u) {
      const TwoVecs old = load_two_vecs(product.c + r * product.c_stride + from + u * kTwoVecs);
      sums[r][u] = {hn::Mul(old.a, rescale), hn::Mul(old.b, rescale)};
    }
  }
  const Steps steps = steps_of<Stored>(product);
  int k = 0;
  if (steps.begins_odd) {
    mix_step<R, U, kWhole, Stored, Counts::kSecond>(product, rows, next, {k++, from, elements},
                                                    sums);
  }
  for (const int end = k + steps.whole; k < end; ++k) {
    mix_step<R, U, kWhole, Stored, Counts::kAll>(product, rows, next, {k, from, elements}, sums);
  }
  if (steps.ends_odd) {
    mix_step<R, U, kWhole, Stored, Counts::kFirst>(product, rows, next, {k, from, elements}, sums);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(8)
    for (int u = 0; u < U; ++u) {
      float* const to = product.c + r * product.c_stride + from + u * kTwoVecs;
      hn::StoreU(sums[r][u].a, floats, to);
      hn::StoreU(sums[r][u].b, floats, to + kLanes);
    }
  }
}

template <int R, class Stored>
void mix_rows(const Product& product, const std::byte* const* rows, const std::byte* const* next,
              int head_dim) {
  constexpr int U = std::max(1, std::min(kSumRegisters / 3 / R, 4));
  int from = 0;
  for (; from + U * kTwoVecs <= head_dim; from += U * kTwoVecs) {
    mix_two_vecs<R, U, true, Stored>(product, rows, next, from, U * kTwoVecs);
  }
  for (; from + kTwoVecs <= head_dim; from += kTwoVecs) {
    mix_two_vecs<R, 1, true, Stored>(product, rows, next, from, kTwoVecs);
  }
  if (from < head_dim) {
    mix_two_vecs<R, 1, false, Stored>(product, rows, next, from, head_dim - from);
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Attention over a segment of one KV head with AMX tiles (tiles.h): for at most 32 queries at a
// time it computes the scores of all positions, the weights relative to their maximum, and the sums
// of values. Stored bytes become bf16, which is exact; their scales multiply scores and weights. So
// a tile of keys or values is loaded once for two tiles of queries, and nothing is rescaled within
// a segment: the vector work for each score takes longer than the tiles. Compiled once for each
// instruction set.

#if defined(PROTEAN_DEVICE_CPU_ATTENTION_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_ATTENTION_AMX_INL_H_
#undef PROTEAN_DEVICE_CPU_ATTENTION_AMX_INL_H_
#else
#define PROTEAN_DEVICE_CPU_ATTENTION_AMX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/units.h"
#include "device/cpu/attention_tile-inl.h"
#include "device/cpu/lanes-inl.h"
#include "device/cpu/query_spans.h"
#include "device/cpu/tile_products-inl.h"
#include "device/cpu/tiles.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// Positions of one product of tiles, which begin at multiples of this; also the columns of two
// tiles of sums.
constexpr int kStep = kTileInputs;
constexpr int kBlockRows = 2 * kTileRows16;
// The distance between the scores of two queries. A power of two would use few sets of the cache.
constexpr int kScoreStride = kSegment + 16;

// Scores of queries in a segment, and the scales of its positions.
struct SegmentScores {
  alignas(64) float scores[kBlockRows * kScoreStride];  // replaced by weights in pairs
  // The rest is used only for kInt8. Products of keys with the low bytes of queries; `scores` then
  // first has those with the high bytes.
  alignas(64) float lows[kBlockRows * kScoreStride];
  bool scaled = false;
  alignas(64) float key_scales[kSegment];
  alignas(64) float value_scales[kSegment];
};

struct SegmentTiles {
  alignas(64) float keys[kMaxHeadDim / 2 * kSegment];  // [64 positions][depth / 2][64]
  // [256 / 2][width]. Some columns beyond the last row are multiplied too, and not used.
  alignas(64) float values[kSegment / 2 * kMaxHeadDim + kStep];
  SegmentScores scores;
};

struct TiledDims {
  int head_dim = 0;
  int depth = 0;   // head_dim rounded up to whole tiles of bf16; floats from one query to the next
  int words = 0;   // 32-bit words of a key, or of the high bytes of a query, in whole tiles
  int width = 0;   // floats of a row of packed values
  int record = 0;  // floats of a record

  TiledDims(int dim, KvElement element)
      : head_dim(dim),
        depth(round_up(dim, kTileInputs)),
        words(round_up<int>(dim * static_cast<int>(kv_element_bytes(element)), kTileBytes) / 4),
        width(round_up(dim, kTwoVecs)),
        record(record_floats(dim)) {}
  int key_floats() const { return words * kTile; }  // floats of 64 positions
  int key_steps() const { return words / kTileRows16; }
};

// Clears the depth beyond head_dim, which pack_keys() does not write.
inline void clear_key_padding(const TiledDims& dims, KvElement element, SegmentTiles& segment) {
  const int used = dims.head_dim * static_cast<int>(kv_element_bytes(element)) / 4;
  for (int tile = 0; tile < kSegment / kTile; ++tile) {
    float* const keys = segment.keys + tile * dims.key_floats();
    std::fill(keys + used * kTile, keys + dims.key_floats(), 0.0f);
  }
}

// Writes a query as integers of two bytes: [words] with the high bytes, then [words] with the low
// ones, which are signed. Returns the scale of the integers.
inline float write_bytes(const float* q, int head_dim, int words, float* to) {
  constexpr float kMost = 127 * 256 + 127;
  using Eight = hn::CappedTag<float, 8>;  // head_dim is a multiple of 8
  const Eight floats;
  const hn::Rebind<std::int8_t, Eight> bytes;
  constexpr int kEach = static_cast<int>(hn::MaxLanes(Eight()));
  const auto infinity = hn::Set(floats, std::numeric_limits<float>::infinity());
  auto largest = hn::Zero(floats);
  for (int i = 0; i < head_dim; i += kEach) {
    const auto magnitude = hn::Abs(hn::LoadU(floats, q + i));
    const auto finite = hn::Lt(magnitude, infinity);  // false for a NaN
    largest = hn::Max(largest, hn::IfThenElse(finite, magnitude, infinity));
  }
  auto* const high = reinterpret_cast<std::int8_t*>(to);
  std::int8_t* const low = high + std::ptrdiff_t{words} * 4;
  std::fill_n(high, std::ptrdiff_t{words} * 8, std::int8_t{0});
  const float unit = hn::GetLane(hn::MaxOfLanes(floats, largest)) / kMost;
  if (!(unit > std::numeric_limits<float>::min())) {
    return 1;  // all integers are 0; the inverse of the unit would overflow
  }
  if (std::isinf(unit)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const auto inverse = hn::Set(floats, 1 / unit);
  for (int i = 0; i < head_dim; i += kEach) {
    const auto whole = hn::NearestInt(hn::Mul(hn::LoadU(floats, q + i), inverse));
    const auto lower = hn::ShiftRight<24>(hn::ShiftLeft<24>(whole));
    hn::StoreU(hn::DemoteTo(bytes, lower), bytes, low + i);
    hn::StoreU(hn::DemoteTo(bytes, hn::ShiftRight<8>(hn::Sub(whole, lower))), bytes, high + i);
  }
  return unit;
}

// Queries whose scores in a segment are computed together. Unused rows of their tiles are
// multiplied too.
struct QueryBlock {
  TiledDims dims;
  const float* q = nullptr;            // [row][depth], in pairs or in bytes
  const float* scales = nullptr;       // [row], factors of the scores
  const PositionRange* see = nullptr;  // [row], within the segment; both ends ascend
  float* records = nullptr;            // [row]
  PositionRange rows;                  // rows that see any position
  float score_cap = 0;                 // 0 means none

  // Returns the steps that have all positions that any row sees.
  PositionRange steps() const {
    return {see[rows.begin].begin / kStep, ceil_div(see[rows.end - 1].end, kStep)};
  }
  PositionRange positions() const { return {steps().begin * kStep, steps().end * kStep}; }
  bool two_tiles() const { return rows.end > kTileRows16; }
};

// The product c[16 or 32][32] = a[16 or 32][steps * 32] * b[steps * 16][32], where rows of a and b
// are pairs of bf16.
struct TileProduct {
  const float* a = nullptr;
  int a_stride = 0;  // floats
  const float* b = nullptr;
  int b_stride = 0;
  int steps = 0;
  float* c = nullptr;
  int c_stride = 0;
};

template <bool kTwo, class Tiles>
void multiply_by_tiles(Tiles& tiles, const TileProduct& product) {
  constexpr std::int64_t kWord = 4;
  const std::int64_t a_bytes = product.a_stride * kWord;
  zero_sums(tiles);
  multiply_steps<kTwo, TileElement::kBf16>(tiles,
                                           {.x = product.a,
                                            .x_stride = kTileRows16 * a_bytes,
                                            .weights = product.b,
                                            .steps = product.steps,
                                            .x_row_bytes = a_bytes,
                                            .x_step_bytes = kTileBytes,
                                            .weight_row_bytes = product.b_stride * kWord},
                                           [] {});
  store_tiles<kTwo>(tiles, product.c, product.c_stride * kWord);
}
template <class Tiles>
void multiply_by_tiles(Tiles& tiles, bool two, const TileProduct& product) {
  if (two) {
    multiply_by_tiles<true>(tiles, product);
  } else {
    multiply_by_tiles<false>(tiles, product);
  }
}

template <class Tiles>
void score_block(Tiles& tiles, const QueryBlock& block, SegmentTiles& segment) {
  const TiledDims& dims = block.dims;
  const PositionRange positions = block.positions();
  for (int at = positions.begin; at < positions.end; at += kStep) {
    multiply_by_tiles(tiles, block.two_tiles(),
                      {.a = block.q,
                       .a_stride = dims.depth,
                       .b = segment.keys + at / kTile * dims.key_floats() + at % kTile,
                       .b_stride = kTile,
                       .steps = dims.key_steps(),
                       .c = segment.scores.scores + at,
                       .c_stride = kScoreStride});
  }
}

// score_block() for bytes: computes products of keys with the high and the low bytes of queries.
template <class Tiles>
void score_bytes(Tiles& tiles, const QueryBlock& block, SegmentTiles& segment) {
  const TiledDims& dims = block.dims;
  const PositionRange positions = block.positions();
  constexpr std::int64_t kRowBytes = kScoreStride * 4;
  for (int first = 0; first < block.rows.end; first += kTileRows16) {
    for (int at = positions.begin; at < positions.end; at += kStep) {
      zero_sums(tiles);
      multiply_steps<true, TileElement::kInt8>(
          tiles,
          {.x = block.q + first * dims.depth,
           .x_stride = std::int64_t{dims.words} * 4,
           .weights = segment.keys + at / kTile * dims.key_floats() + at % kTile,
           .steps = dims.key_steps(),
           .x_row_bytes = std::int64_t{dims.depth} * 4,
           .x_step_bytes = kTileBytes,
           .weight_row_bytes = std::int64_t{kTile} * 4},
          [] {});
      float* const scores = segment.scores.scores + first * kScoreStride + at;
      float* const lows = segment.scores.lows + first * kScoreStride + at;
      tiles.template store<0>(scores, kRowBytes);
      tiles.template store<1>(scores + kTileRows16, kRowBytes);
      tiles.template store<2>(lows, kRowBytes);
      tiles.template store<3>(lows + kTileRows16, kRowBytes);
    }
  }
}

// Returns scores without the scales of queries, from the products with both bytes of queries.
HWY_INLINE Vec scored_bytes(hn::Vec<Words> high, hn::Vec<Words> low, const float* key_scales) {
  const Ints ints;
  const auto product = hn::Add(hn::ShiftLeft<8>(hn::BitCast(ints, high)), hn::BitCast(ints, low));
  return hn::Mul(hn::ConvertTo(Floats(), product), hn::Load(Floats(), key_scales));
}

// Turns the products of bytes into scores.
HWY_NOINLINE inline void join_bytes(const QueryBlock& block, SegmentScores& segment) {
  const Words words;
  const PositionRange positions = block.positions();
  for (int i = block.rows.begin; i < block.rows.end; ++i) {
    float* const scores = segment.scores + i * kScoreStride;
    const float* const lows = segment.lows + i * kScoreStride;
    for (int at = positions.begin; at < positions.end; at += kLanes) {
      const auto high = hn::Load(words, reinterpret_cast<const std::uint32_t*>(scores + at));
      const auto low = hn::Load(words, reinterpret_cast<const std::uint32_t*>(lows + at));
      hn::Store(scored_bytes(high, low, segment.key_scales + at), Floats(), scores + at);
    }
  }
}

HWY_INLINE float highest_score(const float* scores, PositionRange see) {
  const Floats floats;
  Vec high = hn::Set(floats, -std::numeric_limits<float>::infinity());
  const auto look_at_some = [&](int at) HWY_ATTR {
    high = hn::Max(high, hn::IfThenElse(seen_lanes(see, at), hn::Load(floats, scores + at), high));
  };
  int at = see.begin / kLanes * kLanes;
  if (at < see.begin) {
    look_at_some(at);
    at += kLanes;
  }
  for (; at + kLanes <= see.end; at += kLanes) {
    high = hn::Max(high, hn::Load(floats, scores + at));
  }
  if (at < see.end) {
    look_at_some(at);
  }
  return hn::GetLane(hn::MaxOfLanes(floats, high));
}

// Returns 2^x to a relative error of 1.2e-4, which is enough for bf16 (4e-3). Exact for integers. A
// NaN stays a NaN.
HWY_INLINE Vec bf16_exp2(Vec x) {
#if HWY_TARGET == HWY_AVX3
  const Floats floats;
  constexpr int kFloor = 0x01 | 0x08;  // without exceptions
  Vec fraction, power;
  asm("vreduceps %2, %1, %0" : "=v"(fraction.raw) : "v"(x.raw), "i"(kFloor));
  auto sum = hn::Set(floats, 0.0788365165f);
  sum = hn::MulAdd(sum, fraction, hn::Set(floats, 0.225538484f));
  sum = hn::MulAdd(sum, fraction, hn::Set(floats, 0.695625f));
  sum = hn::MulAdd(sum, fraction, hn::Set(floats, 1.0f));
  asm("vscalefps %2, %1, %0" : "=v"(power.raw) : "v"(sum.raw), "v"(x.raw));  // by 2^floor(x)
  return power;
#else
  return rough_exp2(Floats(), x);
#endif
}

// The weights of one query.
struct WeighedRow {
  float* scores = nullptr;
  const float* value_scales = nullptr;  // only if kScaled
  PositionRange positions;              // those of its block
  PositionRange see;
  float scale = 0;  // factor of the scores
};

// Replaces the scores of a query by weights in pairs, 0 for positions that it does not see, and
// writes their sum. kWhole means that it sees all positions of its block. If kScaled, weights are
// multiplied by the scales of values, and their sum is not.
template <bool kWhole, bool kScaled>
HWY_INLINE void weigh_some(const WeighedRow& row, float* record) {
  const Floats floats;
  float* const scores = row.scores;
  const PositionRange see = row.see;
  const Vec factor = hn::Set(floats, row.scale * kLog2E);
  const Vec highest = hn::Set(floats, record[kRecordMaximum] * kLog2E);
  const auto weight_at = [&](int at) HWY_ATTR {
    const Vec weight = bf16_exp2(hn::MulSub(hn::Load(floats, scores + at), factor, highest));
    return kWhole ? weight : hn::IfThenElseZero(seen_lanes(see, at), weight);
  };
  const auto scaled = [&](Vec weight, int at) HWY_ATTR {
    const Vec product = hn::Mul(weight, hn::Load(floats, row.value_scales + at));
    return kWhole ? product : hn::IfThenElseZero(seen_lanes(see, at), product);
  };
  Vec sum = hn::Zero(floats);
  for (int at = row.positions.begin; at < row.positions.end; at += kTwoVecs) {
    TwoVecs weights{weight_at(at), weight_at(at + kLanes)};
    sum = hn::Add(sum, hn::Add(weights.a, weights.b));
    if constexpr (kScaled) {
      weights = {scaled(weights.a, at), scaled(weights.b, at + kLanes)};
    }
    hn::Store(nearest_pairs(weights), floats, scores + at / 2);
  }
  hn::Store(sum, floats, record);
}

template <bool kScaled>
HWY_INLINE void weigh_row(const WeighedRow& row, float* record) {
  if (row.see.within(row.positions) == row.positions) {
    weigh_some<true, kScaled>(row, record);
  } else {
    weigh_some<false, kScaled>(row, record);
  }
}

// Caps and weighs all rows of a block. Computes all maxima first, so that independent chains
// overlap.
HWY_NOINLINE inline void weigh_block(const QueryBlock& block, SegmentScores& segment) {
  for (int i = block.rows.begin; block.score_cap > 0.0f && i < block.rows.end; ++i) {
    cap_scores(block.see[i], block.scales[i], block.score_cap, segment.scores + i * kScoreStride);
  }
  for (int i = block.rows.begin; i < block.rows.end; ++i) {
    block.records[i * block.dims.record + kRecordMaximum] =
        block.scales[i] * highest_score(segment.scores + i * kScoreStride, block.see[i]);
  }
  for (int i = block.rows.begin; i < block.rows.end; ++i) {
    const WeighedRow row{segment.scores + i * kScoreStride, segment.value_scales, block.positions(),
                         block.see[i], block.scales[i]};
    float* const record = block.records + i * block.dims.record;
    if (segment.scaled) {
      weigh_row<true>(row, record);
    } else {
      weigh_row<false>(row, record);
    }
  }
}

// Returns true if all values of these pairs of positions are finite.
inline bool finite_values(PositionRange pairs, const TiledDims& dims, const float* values) {
  const Words words;
  const hn::Repartition<std::uint16_t, Words> halves;
  const auto no_number = hn::Set(halves, std::uint16_t{0x7f80});
  auto highest = hn::Zero(halves);
  for (int at = pairs.begin * dims.width; at < pairs.end * dims.width; at += kLanes) {
    const auto both = hn::LoadU(words, reinterpret_cast<const std::uint32_t*>(values + at));
    highest = hn::Max(highest, hn::And(hn::BitCast(halves, both), no_number));
  }
  return hn::AllFalse(halves, hn::Eq(highest, no_number));
}

// Returns true if all positions that some row of the block does not see are finite, so that a
// weight of 0 removes them.
inline bool unseen_is_finite(const QueryBlock& block, const SegmentTiles& segment) {
  const PositionRange all = block.positions();
  PositionRange by_every_row{block.see[block.rows.end - 1].begin, block.see[block.rows.begin].end};
  if (by_every_row.empty()) {
    by_every_row = {all.begin, all.begin};
  }
  return finite_values({all.begin / 2, ceil_div(by_every_row.begin, 2)}, block.dims,
                       segment.values) &&
         finite_values({by_every_row.end / 2, all.end / 2}, block.dims, segment.values);
}

// Copies 32 columns of values, with zeros for positions that a query does not see.
inline void copy_seen(const QueryBlock& block, PositionRange see, const float* values, float* to) {
  const PositionRange positions = block.positions();
  for (int at = positions.begin; at < positions.end; at += 2, to += kStep) {
    const auto keep = [&](int position, std::uint32_t half) {
      return position >= see.begin && position < see.end ? half : 0U;
    };
    const Words words;
    const auto mask = hn::Set(words, keep(at, 0x0000ffffU) | keep(at + 1, 0xffff0000U));
    const float* const from = values + std::ptrdiff_t{at / 2} * block.dims.width;
    for (int column = 0; column < kStep; column += kLanes) {
      const auto pairs = hn::LoadU(words, reinterpret_cast<const std::uint32_t*>(from + column));
      hn::StoreU(hn::And(pairs, mask), words, reinterpret_cast<std::uint32_t*>(to + column));
    }
  }
}

// mix_block() for blocks with values that are not finite: handles queries that see the same
// positions together.
template <class Tiles>
HWY_NOINLINE void mix_apart(Tiles& tiles, const QueryBlock& block, const SegmentTiles& segment) {
  alignas(64) float values[kSegment / 2 * kStep];
  alignas(64) float sums[kBlockRows * kStep];
  const PositionRange steps = block.steps();
  for (int row = block.rows.begin, same = row; row < block.rows.end; row = same) {
    while (same < block.rows.end && block.see[same] == block.see[row]) {
      ++same;
    }
    for (int column = 0; column < block.dims.width; column += kStep) {
      copy_seen(block, block.see[row], segment.values + column, values);
      multiply_by_tiles(tiles, block.two_tiles(),
                        {.a = segment.scores.scores + steps.begin * kStep / 2,
                         .a_stride = kScoreStride,
                         .b = values,
                         .b_stride = kStep,
                         .steps = steps.end - steps.begin,
                         .c = sums,
                         .c_stride = kStep});
      for (int i = row; i < same; ++i) {
        std::copy_n(sums + i * kStep, kStep,
                    block.records + i * block.dims.record + kRecordSums + column);
      }
    }
  }
}

template <class Tiles>
void mix_block(Tiles& tiles, const QueryBlock& block, const SegmentTiles& segment) {
  if (!segment.scores.scaled && !unseen_is_finite(block, segment)) {
    return mix_apart(tiles, block, segment);
  }
  const PositionRange steps = block.steps();
  for (int column = 0; column < block.dims.width; column += kStep) {
    multiply_by_tiles(tiles, block.two_tiles(),
                      {.a = segment.scores.scores + steps.begin * kStep / 2,
                       .a_stride = kScoreStride,
                       .b = segment.values + steps.begin * kStep / 2 * block.dims.width + column,
                       .b_stride = block.dims.width,
                       .steps = steps.end - steps.begin,
                       .c = block.records + kRecordSums + column,
                       .c_stride = block.dims.record});
  }
}

// Computes the records of the block's rows over this segment.
template <class Tiles>
void attend_block(Tiles& tiles, const QueryBlock& block, SegmentTiles& segment) {
  if (segment.scores.scaled) {
    score_bytes(tiles, block, segment);
    join_bytes(block, segment.scores);
  } else {
    score_block(tiles, block, segment);
  }
  weigh_block(block, segment.scores);
  mix_block(tiles, block, segment);
}

#endif
}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

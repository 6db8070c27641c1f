#include "device/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/bf16.h"
#include "device/cpu/query_spans.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/attention_amx-inl.h"
#include "device/cpu/attention_row-inl.h"
#include "device/cpu/attention_tile-inl.h"
#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Returns false for the plain C++ target, which has no vectors of pairs.
bool has_pairs() {
  return HWY_TARGET != HWY_SCALAR;
}

static_assert(kMaxVectorQueries % kMostRows == 0 && kSegment % kTile == 0 &&
              kLanes <= kRecordMaximum);

struct Dims {
  int head_dim = 0;
  int width = 0;   // head_dim rounded up to whole pairs of vectors
  int record = 0;  // floats of a record
};

// The state of a span's queries, which is kept from tile to tile.
struct Queries {
  alignas(64) float q[kQueryFloats];               // rows of width, half of it used by pairs
  alignas(64) float segment[kQueryFloats];         // records of the current segment
  alignas(64) float merged[kQueryFloats];          // records of all earlier segments
  alignas(64) float weights[kMaxQueries * kTile];  // first scores, then e^(score - maximum)
  float rescale[kMaxQueries];                      // factors of the sums before this tile
  float scales[kMaxQueries];                       // factors of the scores; AMX only
  PositionRange visible[kMaxQueries];
  // The visible positions within the tile (with AMX the segment), relative to its begin.
  PositionRange in_tile[kMaxQueries];
};

struct Tile {
  alignas(64) float keys[kMaxHeadDim * kTile];    // [head_dim][kTile]
  alignas(64) float values[kTile * kMaxHeadDim];  // [kTile][width], in the order of TwoVecs
  alignas(64) float key_scales[kTile];            // only for kInt8
  alignas(64) float value_scales[kTile];
};

// The addresses of the keys and values of a tile.
struct TileRows {
  const std::byte* keys[kTile];
  const std::byte* values[kTile];
  const std::byte* key_scales_at[kTile];  // only for kInt8
  const std::byte* value_scales_at[kTile];
};

inline float read_scale(const std::byte* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return float_from(bits);
}

// Finds the rows of the tile at `base` that any query of the span sees. The other entries repeat
// one of them, since they are prefetched, or read and not used.
void find_rows(const AttentionCall& call, const QuerySpan& span, int base, TileRows& rows) {
  const KvLayer& layer = call.layer;
  const PositionRange see = span.visible(call).within({base, base + kTile});
  const std::int64_t row_bytes = layer.row_bytes();
  const std::int64_t scale_bytes = kv_scale_bytes(layer.element);
  const int begin = see.begin - base;
  const int end = see.end - base;
  int block = see.begin / layer.block_tokens;
  int token = see.begin % layer.block_tokens;
  for (int t = begin; t < end; ++block, token = 0) {
    KvRow row =
        kv_row(layer, span.slice->blocks[static_cast<std::size_t>(block)], span.kv_head, token);
    for (; token < layer.block_tokens && t < end; ++token, ++t) {
      rows.keys[t] = row.key;
      rows.values[t] = row.value;
      row.key += row_bytes;
      row.value += row_bytes;
      if (scale_bytes > 0) {
        rows.key_scales_at[t] = row.key_scale;
        rows.value_scales_at[t] = row.value_scale;
        row.key_scale += scale_bytes;
        row.value_scale += scale_bytes;
      }
    }
    if (scale_bytes > 0) {
      hwy::Prefetch(rows.key_scales_at[t - 1]);
      hwy::Prefetch(rows.value_scales_at[t - 1]);
    }
  }
  for (auto* const array : {rows.keys, rows.values}) {
    std::fill(array, array + begin, array[end - 1]);
    std::fill(array + end, array + kTile, array[end - 1]);
  }
}

// Calls `call` with a value of the type of the store's elements.
template <class Call>
void with_stored(const AttentionCall& of, const Call& call) {
#if HWY_TARGET != HWY_SCALAR
  if (of.paired()) {
    return call(Bf16Pair{});
  }
#endif
  switch (of.layer.element) {
    case KvElement::kF32:
      return call(float{});
    case KvElement::kBf16:
      return call(std::uint16_t{});
    case KvElement::kInt8:
      return call(std::int8_t{});
  }
}

// The scores of one query in a tile.
struct TileScores {
  float* weights = nullptr;      // scores, which weigh() replaces by weights
  const Tile* scales = nullptr;  // if null, all scales are 1
  float scale = 0;               // scale of the softmax
  float cap = 0;                 // cap of the scores, or 0
  PositionRange see;             // within the tile
};

// Replaces the scores of one query by weights relative to the new maximum. Returns the factor for
// earlier sums. Positions that the query does not see get a weight of exactly 0, whatever their
// score.
HWY_NOINLINE float weigh(const TileScores& tile, float* record) {
  const Floats floats;
  const PositionRange see = tile.see;
  float* const weights = tile.weights;
  const int first = see.begin / kLanes * kLanes;
  const auto seen_from = [&](int at) HWY_ATTR { return seen_lanes(see, at); };
  const Vec none = hn::Set(floats, -std::numeric_limits<float>::infinity());
  const Vec scale = hn::Set(floats, tile.scale);
  Vec high = none;
  for (int at = first; at < see.end; at += kLanes) {
    Vec score = hn::Mul(hn::Load(floats, weights + at), scale);
    if (tile.scales != nullptr) {
      score = hn::Mul(score, hn::Load(floats, tile.scales->key_scales + at));
    }
    if (tile.cap > 0.0f) {
      score = hn::Mul(tanh(floats, hn::Div(score, hn::Set(floats, tile.cap))),
                      hn::Set(floats, tile.cap));
    }
    hn::Store(score, floats, weights + at);
    high = hn::Max(high, hn::IfThenElse(seen_from(at), score, none));
  }
  const float before = record[kRecordMaximum];
  const float maximum = std::max(before, hn::GetLane(hn::MaxOfLanes(floats, high)));
  record[kRecordMaximum] = maximum;
  const float rescale = before == -std::numeric_limits<float>::infinity()
                            ? 0.0f
                            : hn::GetLane(exp(floats, hn::Set(floats, before - maximum)));
  Vec total = hn::Mul(hn::Load(floats, record), hn::Set(floats, rescale));
  for (int at = first; at < see.end; at += kLanes) {
    const auto seen = seen_from(at);
    const Vec below = hn::Sub(hn::Load(floats, weights + at), hn::Set(floats, maximum));
    Vec weight = hn::IfThenElseZero(seen, exp(floats, below));
    total = hn::Add(total, weight);
    if (tile.scales != nullptr) {
      weight = hn::IfThenElseZero(
          seen, hn::Mul(weight, hn::Load(floats, tile.scales->value_scales + at)));
    }
    hn::Store(weight, floats, weights + at);
  }
  hn::Store(total, floats, record);
  return rescale;
}

// Replaces the scores of one query by weights in pairs, and adds their sum to `total`. The sum is
// that of rounded weights, so that they add up to one. kWhole means that the query sees the whole
// tile.
template <bool kWhole>
HWY_INLINE void weigh_as_pairs(PositionRange see, float scale, float maximum, float* weights,
                               float* total) {
  const Floats floats;
  const Vec factor = hn::Set(floats, scale * kLog2E);
  const Vec highest = hn::Set(floats, maximum * kLog2E);
  const WordVec ones = hn::Set(Words(), 0x3f803f80U);
  Vec sum = hn::Load(floats, total);
  const int begin = kWhole ? 0 : see.begin / kTwoVecs * kTwoVecs;
  const int end = kWhole ? kTile : see.end;
  const auto weight_at = [&](int at) HWY_ATTR {
    const Vec weight =
        rough_exp2(floats, hn::MulSub(hn::Load(floats, weights + at), factor, highest));
    return kWhole ? weight : hn::IfThenElseZero(seen_lanes(see, at), weight);
  };
  for (int at = begin; at < end; at += kTwoVecs) {
    const Vec pairs = nearest_pairs({weight_at(at), weight_at(at + kLanes)});
    add_bf16_pairs(sum, hn::BitCast(Words(), pairs), ones);
    hn::Store(pairs, floats, weights + at / 2);
  }
  hn::Store(sum, floats, total);
}

// weigh() for pairs. Computes each stage for all queries, so that their independent chains overlap.
HWY_NOINLINE void weigh_pairs(PositionRange which, int record_floats, float scale,
                              Queries& queries) {
  const Floats floats;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  constexpr PositionRange kAll{0, kTile};
  alignas(64) float below[(kMaxQueries + 15) / 16 * 16];  // old maximum - new maximum
  for (int i = which.begin; i < which.end; ++i) {
    const PositionRange see = queries.in_tile[i];
    const float* const scores = queries.weights + i * kTile;
    Vec high = hn::Set(floats, kNone);
    for (int at = see.begin / kLanes * kLanes; at < see.end; at += kLanes) {
      const Vec score = hn::Load(floats, scores + at);
      high = hn::Max(high, see == kAll ? score : hn::IfThenElse(seen_lanes(see, at), score, high));
    }
    float& maximum = queries.segment[i * record_floats + kRecordMaximum];
    const float before = maximum;
    maximum = std::max(before, scale * hn::GetLane(hn::MaxOfLanes(floats, high)));
    below[i - which.begin] = before == kNone ? kNone : before - maximum;
  }
  for (int i = 0; i < which.end - which.begin; i += kLanes) {
    hn::Store(exp(floats, hn::Load(floats, below + i)), floats, below + i);
  }
  std::copy_n(below, which.end - which.begin, queries.rescale + which.begin);
  for (int i = which.begin; i < which.end; ++i) {
    const PositionRange see = queries.in_tile[i];
    float* const record = queries.segment + i * record_floats;
    float* const weights = queries.weights + i * kTile;
    const Vec total = hn::Mul(hn::Load(floats, record), hn::Set(floats, queries.rescale[i]));
    hn::Store(total, floats, record);
    if (see == kAll) {
      weigh_as_pairs<true>(see, scale, record[kRecordMaximum], weights, record);
    } else {
      weigh_as_pairs<false>(see, scale, record[kRecordMaximum], weights, record);
    }
  }
}

// Merges the record `more` into `record`, whose maximum is already that of both.
HWY_NOINLINE void merge(const float* more, float by_ours, float by_theirs, int floats_each,
                        float* record) {
  const Floats floats;
  const Vec ours = hn::Set(floats, by_ours);
  const Vec theirs = hn::Set(floats, by_theirs);
  const auto add = [&](int at) HWY_ATTR {
    const Vec scaled = hn::Mul(hn::Load(floats, record + at), ours);
    hn::Store(hn::MulAdd(hn::Load(floats, more + at), theirs, scaled), floats, record + at);
  };
  add(0);
  for (int at = kRecordSums; at < floats_each; at += kLanes) {
    add(at);
  }
}

// The input of a tile's work besides the queries. `next` is prefetched.
struct TileWork {
  const AttentionCall* call = nullptr;
  const QuerySpan* span = nullptr;
  int base = 0;  // position of the tile
  const TileRows* rows = nullptr;
  const TileRows* next = nullptr;

  bool few() const { return span->queries <= kFewQueries; }
  // Returns the positions of the tile that any query of the span sees.
  PositionRange seen() const {
    const PositionRange see = span->visible(*call).within({base, base + kTile});
    return {see.begin - base, see.end - base};
  }
};

// Kernels for few queries exist for 1, 2, 3, 4 and 8 rows.
inline int rows_at_least(int count) {
  return count > 4 ? 8 : count;
}
inline int rows_at_most(int count) {
  return count >= 8 ? 8 : std::min(count, 4);
}
template <class Call>
void with_rows(int count, const Call& call) {
  switch (count) {
    case 1:
      return call(std::integral_constant<int, 1>());
    case 2:
      return call(std::integral_constant<int, 2>());
    case 3:
      return call(std::integral_constant<int, 3>());
    case 4:
      return call(std::integral_constant<int, 4>());
    default:
      return call(std::integral_constant<int, 8>());
  }
}

template <class Stored>
void score_tile(const TileWork& work, const Dims& dims, PositionRange which, Tile& tile,
                Queries& queries) {
  const PositionRange seen = work.seen();
  const float* const q = queries.q + which.begin * dims.width;
  float* const weights = queries.weights + which.begin * kTile;
  const int count = which.end - which.begin;
  if (work.few()) {
    const FewQueries few{q, dims.width, dims.head_dim, weights};
    with_rows(rows_at_least(count), [&](auto rows) {
      constexpr int kRows = decltype(rows)::value;
      constexpr int kKeys = key_vectors(kRows) * kLanes;
      for (int key = seen.begin / kKeys * kKeys; key < seen.end; key += kKeys) {
        score_keys<kRows, Stored>(few, work.rows->keys, work.rows->values, key);
      }
    });
    return;
  }
  pack_keys<Stored>(work.rows->keys, work.rows->values, dims.head_dim, tile.keys);
  multiply<Stored>({.a = q,
                    .a_stride = dims.width,
                    .b = tile.keys,
                    .b_stride = kTile,
                    .depth = kPaired<Stored> ? dims.head_dim / 2 : dims.head_dim,
                    .c = weights,
                    .c_stride = kTile},
                   count, kTile);
}

// Adds weights * values to the sums. Queries that see the same positions are computed together.
template <class Stored>
void mix_tile(const TileWork& work, const Dims& dims, PositionRange which, Tile& tile,
              Queries& queries) {
  constexpr int kEach = kPositions<Stored>;
  const PositionRange seen = work.seen();
  if (!work.few()) {
    const int from = seen.begin / kEach;
    pack_values<Stored>(work.rows->values + from * kEach, work.next->keys + from * kEach,
                        seen.end - from * kEach, dims.head_dim, tile.values + from * dims.width);
  }
  for (int i = which.begin; i < which.end;) {
    const PositionRange see = queries.in_tile[i];
    int same = i + 1;
    while (same < which.end && queries.in_tile[same] == see) {
      ++same;
    }
    const int from = see.begin / kEach;
    const Product product{.a = queries.weights + i * kTile + from,
                          .a_stride = kTile,
                          .b = tile.values + from * dims.width,
                          .b_stride = dims.width,
                          .depth = (see.end + kEach - 1) / kEach - from,
                          .c = queries.segment + i * dims.record + kRecordSums,
                          .c_stride = dims.record,
                          .rescale = queries.rescale + i,
                          .begins_odd = see.begin % kEach != 0,
                          .ends_odd = see.end % kEach != 0};
    if (!work.few()) {
      multiply<Stored>(product, same - i, dims.width);
      i = same;
      continue;
    }
    // More rows than queries are computed only after the last query, where no other sums are.
    const int count = same == work.span->queries ? rows_at_least(same - i) : rows_at_most(same - i);
    with_rows(count, [&](auto rows) {
      mix_rows<decltype(rows)::value, Stored>(product, work.rows->values + from * kEach,
                                              work.next->keys + from * kEach, dims.head_dim);
    });
    i += count;
  }
}

// Returns the queries that see any of the positions. They are consecutive, as both ends of what
// queries see ascend.
PositionRange queries_that_see(const QuerySpan& span, const Queries& queries,
                               PositionRange positions) {
  PositionRange which{0, span.queries};
  while (which.begin < which.end && queries.visible[which.begin].end <= positions.begin) {
    ++which.begin;
  }
  while (which.end > which.begin && queries.visible[which.end - 1].begin >= positions.end) {
    --which.end;
  }
  return which;
}

void attend_tile(const TileWork& work, Tile& tile, Queries& queries) {
  const AttentionCall& call = *work.call;
  const int head_dim = call.layer.head_dim;
  const Dims dims{head_dim, round_up(head_dim, kTwoVecs), call.record()};
  const PositionRange positions{work.base, work.base + kTile};
  const PositionRange which = queries_that_see(*work.span, queries, positions);
  with_stored(call,
              [&](auto stored) { score_tile<decltype(stored)>(work, dims, which, tile, queries); });
  const bool scaled = call.layer.element == KvElement::kInt8;
  if (scaled) {
    const PositionRange seen = work.seen();
    for (int t = seen.begin; t < seen.end; ++t) {
      tile.key_scales[t] = read_scale(work.rows->key_scales_at[t]);
      tile.value_scales[t] = read_scale(work.rows->value_scales_at[t]);
    }
  }
  const float scale = call.scale();
  for (int i = which.begin; i < which.end; ++i) {
    const PositionRange see = queries.visible[i].within(positions);
    queries.in_tile[i] = {see.begin - work.base, see.end - work.base};
  }
  if (call.paired()) {
    for (int i = which.begin; call.options.score_cap > 0.0f && i < which.end; ++i) {
      cap_scores(queries.in_tile[i], scale, call.options.score_cap, queries.weights + i * kTile);
    }
    weigh_pairs(which, dims.record, scale, queries);
  } else {
    for (int i = which.begin; i < which.end; ++i) {
      queries.rescale[i] = weigh({.weights = queries.weights + i * kTile,
                                  .scales = scaled ? &tile : nullptr,
                                  .scale = scale,
                                  .cap = call.options.score_cap,
                                  .see = queries.in_tile[i]},
                                 queries.segment + i * dims.record);
    }
  }
  with_stored(call,
              [&](auto stored) { mix_tile<decltype(stored)>(work, dims, which, tile, queries); });
}

template <class Done>
HWY_NOINLINE void attend_by_vectors(const AttentionCall& call, const QuerySpan& span,
                                    PositionRange segments, Queries& queries, const Done& done) {
  Tile tile;
  TileRows rows[2];  // rows of this tile and of the next, in turns
  int turn = 0;
  const PositionRange positions =
      span.visible(call).within({segments.begin * kSegment, segments.end * kSegment});
  const int first = positions.begin / kTile * kTile;
  find_rows(call, span, first, rows[turn]);
  PositionRange which;
  for (int base = first; base < positions.end; base += kTile, turn = 1 - turn) {
    const int segment = base / kSegment;
    if (base == first || base % kSegment == 0) {
      which = queries_that_see(span, queries, segment_range(segment));
      for (int i = which.begin; i < which.end; ++i) {
        float* const record = queries.segment + i * call.record();
        std::fill_n(record, call.record(), 0.0f);
        record[kRecordMaximum] = -std::numeric_limits<float>::infinity();
      }
    }
    const bool ends = base + kTile >= positions.end;
    if (!ends) {
      find_rows(call, span, base + kTile, rows[1 - turn]);
    }
    attend_tile({&call, &span, base, &rows[turn], &rows[ends ? turn : 1 - turn]}, tile, queries);
    if (ends || (base + kTile) % kSegment == 0) {
      done(segment, which);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
// Computes the records of the queries that see some of a packed segment.
template <class Tiles>
void attend_segment(Tiles& tiles, const AttentionCall& call, PositionRange which,
                    SegmentTiles& segment, Queries& queries) {
  const TiledDims dims(call.layer.head_dim, call.layer.element);
  for (int first = 0; first < which.end; first += kBlockRows) {
    const PositionRange rows = which.within({first, first + kBlockRows});
    if (!rows.empty()) {
      attend_block(tiles,
                   {.dims = dims,
                    .q = queries.q + std::ptrdiff_t{first} * dims.depth,
                    .scales = queries.scales + first,
                    .see = queries.in_tile + first,
                    .records = queries.segment + std::ptrdiff_t{first} * dims.record,
                    .rows = {rows.begin - first, rows.end - first},
                    .score_cap = call.options.score_cap},
                   segment);
    }
  }
}

// Packs a tile of a segment.
template <class Key, class Value>
void pack_tile(const TileRows& rows, const TileRows& next, const TiledDims& dims, int tile,
               SegmentTiles& segment) {
  pack_keys<Key>(rows.keys, rows.values, dims.head_dim, segment.keys + tile * dims.key_floats());
  pack_values<Value>(rows.values, next.keys, kTile, dims.head_dim,
                     segment.values + tile * kTile / 2 * dims.width);
}

// Reads the scales of a tile's positions that some query sees; the others are 0.
inline void read_scales(const TileRows& rows, PositionRange seen, int tile,
                        SegmentScores& segment) {
  float* const keys = segment.key_scales + tile * kTile;
  float* const values = segment.value_scales + tile * kTile;
  std::fill_n(keys, kTile, 0.0f);
  std::fill_n(values, kTile, 0.0f);
  for (int t = seen.begin; t < seen.end; ++t) {
    keys[t] = read_scale(rows.key_scales_at[t]);
    values[t] = read_scale(rows.value_scales_at[t]);
  }
}

// Computes segments with AMX. Packs whole tiles: positions that no query sees repeat another
// position and get a weight of 0.
template <class Tiles, class Done>
HWY_NOINLINE void attend_by_tiles(const AttentionCall& call, const QuerySpan& span,
                                  PositionRange segments, Queries& queries, const Done& done) {
  const TiledDims dims(call.layer.head_dim, call.layer.element);
  SegmentTiles segment;
  segment.scores.scaled = call.layer.element == KvElement::kInt8;
  clear_key_padding(dims, call.layer.element, segment);
  TileRows rows[2];  // rows of this tile and of the next, in turns
  int turn = 0;
  const PositionRange positions =
      span.visible(call).within({segments.begin * kSegment, segments.end * kSegment});
  int base = positions.begin / kTile * kTile;
  find_rows(call, span, base, rows[turn]);
  Tiles tiles;
  tiles.configure();
  while (base < positions.end) {
    const int index = base / kSegment;
    const PositionRange all = segment_range(index);
    for (; base < std::min(all.end, positions.end); base += kTile, turn = 1 - turn) {
      const bool ends = base + kTile >= positions.end;
      if (!ends) {
        find_rows(call, span, base + kTile, rows[1 - turn]);
      }
      const int tile = (base - all.begin) / kTile;
      const TileRows& next = rows[ends ? turn : 1 - turn];
      if (segment.scores.scaled) {
        const PositionRange seen = positions.within({base, base + kTile});
        pack_tile<Int8Four, Int8Pair>(rows[turn], next, dims, tile, segment);
        read_scales(rows[turn], {seen.begin - base, seen.end - base}, tile, segment.scores);
      } else {
        pack_tile<Bf16Pair, Bf16Pair>(rows[turn], next, dims, tile, segment);
      }
    }
    const PositionRange which = queries_that_see(span, queries, all);
    for (int i = which.begin; i < which.end; ++i) {
      const PositionRange see = queries.visible[i].within(all);
      queries.in_tile[i] = {see.begin - all.begin, see.end - all.begin};
    }
    attend_segment(tiles, call, which, segment, queries);
    done(index, which);
  }
  tiles.release();
}

// Computes segments of a span of one row with AMX.
template <class Tiles, class Done>
HWY_NOINLINE void attend_row_by_tiles(const AttentionCall& call, const QuerySpan& span,
                                      PositionRange segments, Queries& queries, const Done& done) {
  RowSpace space(call);
  KvAhead ahead(call, span);
  ahead.begin(segments.begin);
  ahead.ask_all();
  Tiles tiles;
  tiles.configure();
  for (int index = segments.begin; index < segments.end; ++index) {
    if (index + 1 < segments.end) {
      ahead.begin(index + 1);
    }
    const SegmentRuns runs(call, span, index);
    for (int i = 0; i < span.kv_heads; ++i) {
      const std::ptrdiff_t query = std::ptrdiff_t{i} * call.group();
      const RowHead head{.call = call,
                         .span = span,
                         .runs = runs,
                         .head = i,
                         .q = queries.q + query * space.dims.depth,
                         .scales = queries.scales + query,
                         .records = queries.segment + query * call.record()};
      if (space.scores.scaled) {
        attend_head<TileElement::kInt8, Int8Pair>(tiles, head, {space, ahead});
      } else {
        attend_head<TileElement::kBf16, Bf16Pair>(tiles, head, {space, ahead});
      }
    }
    done(index, PositionRange{0, span.queries});
  }
  tiles.release();
}

// Computes segments with AMX.
template <class Tiles, class Done>
void attend_with(const AttentionCall& call, const QuerySpan& span, PositionRange segments,
                 Queries& queries, const Done& done) {
  if (call.by_row(*span.slice)) {
    attend_row_by_tiles<Tiles>(call, span, segments, queries, done);
  } else {
    attend_by_tiles<Tiles>(call, span, segments, queries, done);
  }
}
#endif

// Computes segments. After each it calls done(segment, queries that see some of it);
// queries.segment then has the records of these queries.
template <class Done>
void attend_segments(const AttentionCall& call, const QuerySpan& span, PositionRange segments,
                     Queries& queries, const Done& done) {
#if HWY_TARGET != HWY_SCALAR
  if (call.options.isa == MatmulIsa::kEmulatedAmx) {
    return attend_with<EmulatedTiles>(call, span, segments, queries, done);
  }
#if HWY_ARCH_X86_64
  if (call.options.isa == MatmulIsa::kAmx) {
    return attend_with<AmxTiles>(call, span, segments, queries, done);
  }
#endif
#endif
  check(!call.tiled(), "AMX is a feature of x86");
  attend_by_vectors(call, span, segments, queries, done);
}

// Merges the records of a segment with those of earlier segments. Computes the factors of all
// queries first, so that their independent chains overlap.
void merge_segment(const AttentionCall& call, int segment, PositionRange which,
                   const float* records, Queries& queries) {
  const Floats floats;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  alignas(64) float ours[kMaxQueries] = {}, theirs[kMaxQueries] = {};
  const auto first = [&](int i) { return queries.visible[i].begin / kSegment == segment; };
  for (int i = which.begin; i < which.end; ++i) {
    float* const merged = queries.merged + i * call.record();
    const float* const more = records + i * call.record();
    if (first(i)) {
      std::copy_n(more, call.record(), merged);
      continue;
    }
    const float before = merged[kRecordMaximum], other = more[kRecordMaximum];
    const float maximum = std::max(before, other);
    ours[i - which.begin] = before == kNone ? kNone : before - maximum;
    theirs[i - which.begin] = other == kNone ? kNone : other - maximum;
    merged[kRecordMaximum] = maximum;
  }
  for (int i = 0; i < which.end - which.begin; i += kLanes) {
    hn::Store(exp(floats, hn::Load(floats, ours + i)), floats, ours + i);
    hn::Store(exp(floats, hn::Load(floats, theirs + i)), floats, theirs + i);
  }
  for (int i = which.begin; i < which.end; ++i) {
    if (!first(i)) {
      merge(records + i * call.record(), ours[i - which.begin], theirs[i - which.begin],
            call.record(), queries.merged + i * call.record());
    }
  }
}

// Writes a query in the form in which it is multiplied, to a row of `width`. Returns the factor of
// its scores.
float write_query(const AttentionCall& call, const float* q, int width, float* to) {
  const int head_dim = call.layer.head_dim;
#if HWY_TARGET != HWY_SCALAR
  if (call.tiled() && call.layer.element == KvElement::kInt8) {
    return call.scale() *
           write_bytes(q, head_dim, TiledDims(head_dim, call.layer.element).words, to);
  }
#endif
  std::copy_n(q, head_dim, to);
  if (call.paired()) {
    std::fill(to + head_dim, to + width, 0.0f);
    for (int from = 0; from < width; from += kTwoVecs) {
      hn::Store(nearest_pairs(load_two_vecs(to + from)), Floats(), to + from / 2);
    }
  }
  return call.scale();
}

void begin_queries(const AttentionCall& call, const QuerySpan& span, Queries& queries) {
  const int head_dim = call.layer.head_dim;
  const int width = round_up(head_dim, call.tiled() ? kTileInputs : kTwoVecs);
  for (int i = 0; i < span.queries; ++i) {
    queries.scales[i] =
        write_query(call, call.q + span.offset(call, i), width, queries.q + i * width);
    queries.visible[i] = span.visible(call, i);
  }
  if (call.tiled()) {  // clears the unused rows of the last tile
    std::fill(queries.q + span.queries * width,
              queries.q + round_up(span.queries, kTileRows16) * width, 0.0f);
  } else if (span.queries <=
             kFewQueries) {  // clears the rows that are computed beyond the last query
    std::fill(queries.rescale + span.queries, queries.rescale + kFewQueries, 0.0f);
    std::fill(queries.q + span.queries * width, queries.q + kFewQueries * width, 0.0f);
  }
}

// Writes out = sums / total, in plain order.
template <class Stored>
void end_queries(const AttentionCall& call, const QuerySpan& span, const Queries& queries) {
  const Floats floats;
  const int head_dim = call.layer.head_dim;
  for (int i = 0; i < span.queries; ++i) {
    const float* const record = queries.merged + i * call.record();
    const Vec total = hn::SumOfLanes(floats, hn::Load(floats, record));
    alignas(64) float padded[kMaxHeadDim];
    for (int from = 0; from < head_dim; from += kTwoVecs) {
      TwoVecs vecs = load_two_vecs(record + kRecordSums + from);
      if (call.tiled()) {
        // Tiles flush tiny sums to a zero with their sign. Adding an unseen position makes the zero
        // positive, which would depend on other queries; adding 0 makes it positive always.
        vecs = {hn::Add(vecs.a, hn::Zero(floats)), hn::Add(vecs.b, hn::Zero(floats))};
      }
      vecs = {hn::Div(vecs.a, total), hn::Div(vecs.b, total)};
      if (call.options.element == Element::kBf16) {
        vecs = {round_bf16(floats, vecs.a), round_bf16(floats, vecs.b)};
      }
      store_sums<Stored>(vecs, padded + from);
    }
    std::copy_n(padded, head_dim, call.out + span.offset(call, i));
  }
}

void end_part(const AttentionCall& call, const QuerySpan& span, const Queries& queries) {
  if (call.layer.element == KvElement::kBf16) {
    end_queries<std::uint16_t>(call, span, queries);
  } else {
    end_queries<float>(call, span, queries);
  }
}

void attend(const AttentionCall& call, const QuerySpan& span) {
  Queries queries;
  begin_queries(call, span, queries);
  attend_segments(call, span, span.segments(call), queries, [&](int segment, PositionRange which) {
    merge_segment(call, segment, which, queries.segment, queries);
  });
  end_part(call, span, queries);
}

// Computes segments of a span to records[segment][queries][record].
void attend_apart(const AttentionCall& call, const QuerySpan& span, PositionRange segments,
                  float* records) {
  Queries queries;
  begin_queries(call, span, queries);
  attend_segments(call, span, segments, queries, [&](int segment, PositionRange which) {
    float* const to =
        records + std::ptrdiff_t{segment - segments.begin} * span.queries * call.record();
    std::copy(queries.segment + which.begin * call.record(),
              queries.segment + which.end * call.record(), to + which.begin * call.record());
  });
}

// Merges the records of all segments of a span, [segment][queries][record], like attend() does.
void merge_apart(const AttentionCall& call, const QuerySpan& span, const float* records) {
  Queries queries;
  for (int i = 0; i < span.queries; ++i) {
    queries.visible[i] = span.visible(call, i);
  }
  const PositionRange segments = span.segments(call);
  for (int segment = segments.begin; segment < segments.end; ++segment) {
    const PositionRange which = queries_that_see(span, queries, segment_range(segment));
    merge_segment(call, segment, which, records, queries);
    records += span.queries * call.record();
  }
  end_part(call, span, queries);
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(has_pairs);
HWY_EXPORT(attend);
HWY_EXPORT(attend_apart);
HWY_EXPORT(merge_apart);

MatmulIsa isa_for(KvElement element, MatmulIsa wanted) {
  if (element == KvElement::kF32 || !HWY_DYNAMIC_DISPATCH(has_pairs)()) {
    return MatmulIsa::kVector;
  }
  const MatmulIsa isa = wanted == MatmulIsa::kBest ? best_isa() : wanted;
  return element == KvElement::kInt8 && !has_tiles(isa) ? MatmulIsa::kVector : isa;
}

// Consecutive segments of a span, computed as a task.
struct SegmentTask {
  const QuerySpan* span = nullptr;
  PositionRange segments;
  std::int64_t records_at = 0;
};

// Computes the segments of spans as separate tasks, if there are few spans for the threads. Keeps
// all records and merges them in the order in which one thread would have.
void attend_by_segments(Team& team, const AttentionCall& call,
                        const std::vector<QuerySpan>& spans) {
  std::vector<SegmentTask> tasks;
  std::vector<std::int64_t> first_records;
  std::int64_t floats = 0;
  const int row_segments = row_segments_of_task(call, spans, team.threads());
  for (const QuerySpan& span : spans) {
    first_records.push_back(floats);
    const PositionRange all = span.segments(call);
    const int each = call.by_row(*span.slice) ? row_segments : 1;
    for (int begin = all.begin; begin < all.end; begin += each) {
      const PositionRange segments{begin, std::min(begin + each, all.end)};
      tasks.push_back({&span, segments, floats});
      floats += std::int64_t{span.queries} * call.record() * (segments.end - segments.begin);
    }
  }
  constexpr std::size_t kAlignmentFloats = 16;
  std::vector<float> room(static_cast<std::size_t>(floats) + kAlignmentFloats);
  void* aligned = room.data();
  std::size_t bytes = room.size() * sizeof(float);
  check(std::align(64, static_cast<std::size_t>(floats) * sizeof(float), aligned, bytes) != nullptr,
        "the memory can be aligned");
  auto* const records = static_cast<float*>(aligned);
  team.run(std::ssize(tasks), [&](std::int64_t index, int) {
    const SegmentTask& task = tasks[static_cast<std::size_t>(index)];
    HWY_DYNAMIC_DISPATCH(attend_apart)
    (call, *task.span, task.segments, records + task.records_at);
  });
  team.run(std::ssize(spans), [&](std::int64_t index, int) {
    const auto i = static_cast<std::size_t>(index);
    HWY_DYNAMIC_DISPATCH(merge_apart)(call, spans[i], records + first_records[i]);
  });
}

}  // namespace

void attention(Team& team, const KvLayer& layer, std::span<const AttentionSlice> slices,
               const AttentionOptions& options, const AttentionRows& rows) {
  check_layer(layer);
  check(options.heads > 0 && options.heads % layer.kv_heads == 0,
        "query heads are not a multiple of KV heads");
  const std::int64_t width = std::int64_t{options.heads} * layer.head_dim;
  const auto& [q, out] = rows;
  check(q.size() == out.size() && std::ssize(q) % width == 0, "q and out are not rows of heads");
  check_slices(layer, slices, std::ssize(q) / width);
  AttentionCall call{layer, options, q.data(), out.data()};
  call.options.isa = isa_for(layer.element, options.isa);
  const std::vector<QuerySpan> spans = spans_of(call, slices, team.threads());
  if (!balanced(call, spans, team.threads())) {
    attend_by_segments(team, call, spans);
    return;
  }
  team.run(std::ssize(spans), [&](std::int64_t index, int) {
    HWY_DYNAMIC_DISPATCH(attend)(call, spans[static_cast<std::size_t>(index)]);
  });
}

}  // namespace protean::cpu
#endif

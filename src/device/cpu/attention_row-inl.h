// Attention of one row over a segment with AMX tiles (tiles.h). Scores are products of keys and
// queries, so that keys are tiles as they lie in the store, and only scores are transposed: a few
// for each key. TDPBF16PS multiplies and adds the same numbers in the same order either way, so the
// row has the bits of attend_block() (attention_amx-inl.h). Compiled once for each instruction set.

#if defined(PROTEAN_DEVICE_CPU_ATTENTION_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PROTEAN_DEVICE_CPU_ATTENTION_ROW_INL_H_
#undef PROTEAN_DEVICE_CPU_ATTENTION_ROW_INL_H_
#else
#define PROTEAN_DEVICE_CPU_ATTENTION_ROW_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/units.h"
#include "device/cpu/attention_amx-inl.h"
#include "device/cpu/attention_tile-inl.h"
#include "device/cpu/lanes-inl.h"
#include "device/cpu/query_spans.h"
#include "device/cpu/tiles.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// Positions whose keys, or values, are rows at equal distances: the rows of a tile of keys.
constexpr int kRun = kTileRows16;
// Columns of values that have their sums in tiles at the same time.
constexpr int kMixColumns = 4 * kTileRows16;
constexpr int kStepsOfSegment = kSegment / kStep;

// Prefetches the keys and values of a span into L2, a segment at a time and all heads of a block
// together. Blocks have any order in memory, and pieces of one head are too short to be read at the
// speed of memory.
class KvAhead {
 public:
  KvAhead(const AttentionCall& call, const QuerySpan& span)
      : call_(call),
        span_(span),
        lines_(ceil_div<std::int64_t>(span.kv_heads * call.layer.slot_bytes(), kLine)) {}

  // Continues with the blocks of this segment.
  void begin(int segment) {
    const PositionRange see = span_.visible(call_).within(segment_range(segment));
    const int tokens = call_.layer.block_tokens;
    blocks_ = {see.begin / tokens, ceil_div(see.end, tokens)};
    each_ = ceil_div<std::int64_t>(lines_ * (blocks_.end - blocks_.begin),
                                   std::int64_t{kAsks} * kStepsOfSegment * span_.kv_heads);
    next_block();
  }
  // Prefetches a share of what a step of a head prefetches.
  HWY_INLINE void ask() {
    const std::int64_t lines = std::min(each_, left_);
    for (std::int64_t i = 0; i < lines; ++i, at_ += kLine) {
      __builtin_prefetch(at_, 0, 2);  // for reading, into L2; 3 would be L1
    }
    left_ -= lines;
    if (left_ == 0) {
      next_block();
    }
  }
  void ask_all() {
    while (each_ > 0) {
      ask();
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  static constexpr int kAsks = 4 + kRun;  // in the scores and the values of a step

  HWY_NOINLINE void next_block() {
    if (blocks_.empty()) {
      each_ = 0;
      left_ = 1;
      return;
    }
    const BlockId block = span_.slice->blocks[static_cast<std::size_t>(blocks_.begin++)];
    at_ = kv_row(call_.layer, block, span_.kv_head, 0).key;
    left_ = lines_;
  }

  const AttentionCall& call_;
  const QuerySpan& span_;
  const std::int64_t lines_;  // lines in a block
  std::int64_t each_ = 0;     // lines of each call
  PositionRange blocks_;      // those after this one
  const std::byte* at_ = nullptr;
  std::int64_t left_ = 1;  // lines of this block
};

// Addresses of a segment's keys, for each run of kRun positions that lies in one block.
struct SegmentRuns {
  int base = 0;        // position of the segment
  PositionRange seen;  // positions of the segment that the row sees
  // The first KV head of the span, for runs that are whole in one block; else null.
  const std::byte* keys[kSegment / kRun] = {};
  const std::byte* key_scales[kSegment / kRun] = {};

  SegmentRuns(const AttentionCall& call, const QuerySpan& span, int segment)
      : base(segment * kSegment), seen(span.visible(call).within(segment_range(segment))) {
    const int tokens = call.layer.block_tokens;
    if (tokens % kRun != 0) {
      return;
    }
    for (int at = round_up(seen.begin, kRun); at + kRun <= seen.end; at += kRun) {
      const BlockId block = span.slice->blocks[static_cast<std::size_t>(at / tokens)];
      const KvRow row = kv_row(call.layer, block, span.kv_head, at % tokens);
      keys[(at - base) / kRun] = row.key;
      key_scales[(at - base) / kRun] = row.key_scale;
    }
  }
};

// Memory for the work on one head.
struct RowSpace {
  explicit RowSpace(const AttentionCall& call) : dims(call.layer.head_dim, call.layer.element) {
    scores.scaled = call.layer.element == KvElement::kInt8;
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < kStep; ++i) {
        product_rows[step][i] = reinterpret_cast<const std::byte*>(products[step][i]);
      }
    }
  }
  TiledDims dims;
  SegmentScores scores;
  alignas(64) float queries[kMaxHeadDim / 2 * kTileRows16];  // [words][16]
  alignas(64) float keys[kStep * kMaxHeadDim / 2];           // [kStep][words]
  alignas(64) float products[2][kStep][kTileRows16];         // two steps in turns
  alignas(64) float values[2][kRun][kMixColumns];            // two steps in turns, in pairs
  alignas(64) float sums[kTileRows16][kMixColumns];
  alignas(64) std::byte copies[2][kRun * kMaxHeadDim * 2];  // rows of the store
  const std::byte* product_rows[2][kStep];
  PositionRange see[kTileRows16];
};

// A KV head of a span of one row in a segment.
struct RowHead {
  const AttentionCall& call;
  const QuerySpan& span;
  const SegmentRuns& runs;
  int head = 0;                   // within the span
  const float* q = nullptr;       // [group][depth]
  const float* scales = nullptr;  // [group], factors of the scores
  float* records = nullptr;       // [group]

  KvRow row(int position) const {
    const int tokens = call.layer.block_tokens;
    const BlockId block = span.slice->blocks[static_cast<std::size_t>(position / tokens)];
    return kv_row(call.layer, block, span.kv_head + head, position % tokens);
  }
};

enum class KvHalf { kKeys, kValues };

// Copies the rows of a run to `copy`, with zeros for positions that are not seen.
template <KvHalf kHalf>
HWY_NOINLINE const std::byte* copy_run(const RowHead& head, int run, std::byte* copy) {
  const std::int64_t bytes = head.call.layer.row_bytes();
  const PositionRange see = head.runs.seen;
  const int position = head.runs.base + run * kRun;
  for (int t = 0; t < kRun; ++t) {
    std::byte* const to = copy + t * bytes;
    if (position + t >= see.begin && position + t < see.end) {
      const KvRow row = head.row(position + t);
      std::memcpy(to, kHalf == KvHalf::kKeys ? row.key : row.value,
                  static_cast<std::size_t>(bytes));
    } else {
      std::memset(to, 0, static_cast<std::size_t>(bytes));
    }
  }
  return copy;
}

// Returns the rows of a run, in the store or in `copy`.
template <KvHalf kHalf>
HWY_INLINE const std::byte* rows_of_run(const RowHead& head, int run, std::byte* copy) {
  const KvLayer& layer = head.call.layer;
  const std::byte* const keys = head.runs.keys[run];
  if (keys == nullptr) {
    return copy_run<kHalf>(head, run, copy);
  }
  const std::int64_t values = kHalf == KvHalf::kKeys ? 0 : layer.block_tokens * layer.row_bytes();
  return keys + head.head * layer.slot_bytes() + values;
}

// Reads the scales of a run, which are 0 for positions that are not seen.
inline void read_run_scales(const RowHead& head, int run, SegmentScores& segment) {
  const KvLayer& layer = head.call.layer;
  const auto widen_scales = [](const void* from, float* to) HWY_ATTR {
    const Words words;
    const hn::Rebind<std::uint16_t, Words> halves;
    for (int i = 0; i < kRun; i += kLanes) {
      const auto bits = hn::LoadU(halves, static_cast<const std::uint16_t*>(from) + i);
      hn::Store(hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(words, bits))), Floats(),
                to + i);
    }
  };
  float* const keys = segment.key_scales + run * kRun;
  float* const values = segment.value_scales + run * kRun;
  if (head.runs.keys[run] != nullptr) {
    const std::byte* const scales = head.runs.key_scales[run] + head.head * layer.slot_bytes();
    widen_scales(scales, keys);
    widen_scales(scales + layer.block_tokens * kv_scale_bytes(layer.element), values);
    return;
  }
  std::uint16_t key_bits[kRun] = {}, value_bits[kRun] = {};
  const int position = head.runs.base + run * kRun;
  const PositionRange see = head.runs.seen.within({position, position + kRun});
  for (int t = see.begin; t < see.end; ++t) {
    const KvRow row = head.row(t);
    std::memcpy(key_bits + (t - position), row.key_scale, sizeof(std::uint16_t));
    std::memcpy(value_bits + (t - position), row.value_scale, sizeof(std::uint16_t));
  }
  widen_scales(key_bits, keys);
  widen_scales(value_bits, values);
}

// Rows of a tile of keys.
struct KeyRows {
  const void* rows = nullptr;
  std::int64_t row_bytes = 0;
};

// Returns the keys of a run, with zeros beyond head_dim.
inline KeyRows keys_of_run(const RowHead& head, int run, RowSpace& space) {
  const std::int64_t bytes = head.call.layer.row_bytes();
  const std::int64_t tile_bytes = std::int64_t{space.dims.words} * 4;
  const std::byte* const rows = rows_of_run<KvHalf::kKeys>(head, run, space.copies[run % 2]);
  if (bytes == tile_bytes) {
    return {rows, bytes};
  }
  auto* const to = reinterpret_cast<std::byte*>(space.keys) + run % 2 * kRun * tile_bytes;
  for (int t = 0; t < kRun; ++t) {
    std::memcpy(to + t * tile_bytes, rows + t * bytes, static_cast<std::size_t>(bytes));
    std::memset(to + t * tile_bytes + bytes, 0, static_cast<std::size_t>(tile_bytes - bytes));
  }
  return {to, tile_bytes};
}

// Computes products[32][16] of the keys of a step and all queries in tiles kSums and kSums + 1.
template <TileElement kElement, int kSums, class Tiles>
HWY_INLINE void multiply_keys(Tiles& tiles, const KeyRows (&keys)[2], const RowSpace& space,
                              float* products) {
  tiles.template zero<kSums>();
  tiles.template zero<kSums + 1>();
  for (int i = 0; i < space.dims.key_steps(); ++i) {
    const auto at = [&](const KeyRows& run) {
      return static_cast<const std::byte*>(run.rows) + std::ptrdiff_t{i} * kTileBytes;
    };
    tiles.template load<6>(space.queries + std::ptrdiff_t{i} * kTileRows16 * kTileRows16,
                           kTileBytes);
    tiles.template load<4>(at(keys[0]), keys[0].row_bytes);
    add_product<kElement, kSums, 4, 6>(tiles);
    tiles.template load<5>(at(keys[1]), keys[1].row_bytes);
    add_product<kElement, kSums + 1, 5, 6>(tiles);
  }
  tiles.template store<kSums>(products, kTileBytes);
  tiles.template store<kSums + 1>(products + kTileRows16 * kTileRows16, kTileBytes);
}

// What the work on all heads of a span has in common.
struct RowWork {
  RowSpace& space;
  KvAhead& ahead;
};

// The column of a query's low bytes; that of its high bytes is its number.
constexpr int kLowColumn = kTileRows16 / 2;

// Transposes the products of the step at `at` to the scores of the queries.
template <TileElement kElement>
HWY_INLINE void spread_products(const std::byte* const* rows, int queries, int at,
                                SegmentScores& segment) {
  for (int query = 0; query < queries; query += 4) {
    for (int key = 0; key < kStep; key += kLanes) {
      hn::Vec<Words> words[4], lows[4];
      load_words(rows + key, query * 4, words);
      if constexpr (kElement == TileElement::kInt8) {
        load_words(rows + key, (kLowColumn + query) * 4, lows);
      }
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        Vec scores = hn::BitCast(Floats(), words[i]);
        if constexpr (kElement == TileElement::kInt8) {
          scores = scored_bytes(words[i], lows[i], segment.key_scales + at + key);
        }
        hn::Store(scores, Floats(), segment.scores + (query + i) * kScoreStride + at + key);
      }
    }
  }
}

// Transposes the queries of a head, so that they are columns of tiles. Unused columns repeat one.
template <TileElement kElement>
void transpose_queries(const RowHead& head, RowSpace& space) {
  constexpr int kColumns = kElement == TileElement::kInt8 ? kLowColumn : kTileRows16;
  const std::byte* rows[kTileRows16];
  for (int i = 0; i < kTileRows16; ++i) {
    const int query = std::min(i % kColumns, head.call.group() - 1);
    rows[i] = reinterpret_cast<const std::byte*>(head.q + query * space.dims.depth +
                                                 i / kColumns * space.dims.words);
  }
  for (int word = 0; word < space.dims.words; word += 4) {
    for (int i = 0; i < kTileRows16; i += kLanes) {
      hn::Vec<Words> words[4];
      load_words(rows + i, word * 4, words);
      HWY_UNROLL(4)
      for (int k = 0; k < 4; ++k) {
        hn::Store(hn::BitCast(Floats(), words[k]), Floats(),
                  space.queries + (word + k) * kTileRows16 + i);
      }
    }
  }
}

template <TileElement kElement, class Tiles>
HWY_NOINLINE void score_row(Tiles& tiles, const RowHead& head, PositionRange steps,
                            const RowWork& work) {
  RowSpace& space = work.space;
  KvAhead& ahead = work.ahead;
  const int group = head.call.group();
  transpose_queries<kElement>(head, space);
  // The products of a step are transposed after those of the next were begun.
  for (int step = steps.begin; step < steps.end; ++step) {
    KeyRows keys[2];
    for (int run = 0; run < 2; ++run) {
      keys[run] = keys_of_run(head, 2 * step + run, space);
      if constexpr (kElement == TileElement::kInt8) {
        read_run_scales(head, 2 * step + run, space.scores);
      }
    }
    if (step % 2 == 0) {
      multiply_keys<kElement, 0>(tiles, keys, space, space.products[0][0]);
    } else {
      multiply_keys<kElement, 2>(tiles, keys, space, space.products[1][0]);
    }
    ahead.ask();
    ahead.ask();
    if (step > steps.begin) {
      spread_products<kElement>(space.product_rows[(step - 1) % 2], group, (step - 1) * kStep,
                                space.scores);
    }
    ahead.ask();
    ahead.ask();
  }
  const int last = steps.end - 1;
  spread_products<kElement>(space.product_rows[last % 2], group, last * kStep, space.scores);
}

// Packs `columns` of values of a step to to[kRun][kMixColumns]. kWhole means that they are
// kMixColumns.
template <class Stored, bool kWhole>
HWY_INLINE void pack_step(const std::byte* const (&runs)[2], std::int64_t row_bytes,
                          PositionRange columns, float* to, KvAhead& ahead) {
  const Floats floats;
  const int count = kWhole ? kMixColumns : columns.end - columns.begin;
  for (const std::byte* rows : runs) {
    for (int pair = 0; pair < kRun / 2; ++pair, rows += 2 * row_bytes, to += kMixColumns) {
      const std::byte* const two[2] = {rows, rows + row_bytes};
      ahead.ask();
      HWY_UNROLL(4)
      for (int i = 0; i < count; i += kTwoVecs) {
        const TwoVecs vecs = kWhole || i + kTwoVecs <= count
                                 ? load_values<Stored, true>(two, columns.begin + i, kTwoVecs)
                                 : load_values<Stored, false>(two, columns.begin + i, count - i);
        hn::Store(vecs.a, floats, to + i);
        hn::Store(vecs.b, floats, to + i + kLanes);
      }
    }
  }
}

// Adds up weighted values of some columns, in two or four tiles of sums. kWhole means that the
// columns are kMixColumns. The values of a step are packed before the tiles of the step before are
// multiplied, because a tile that is loaded just after it was stored waits.
template <class Stored, bool kFour, bool kWhole, class Tiles>
HWY_NOINLINE void mix_row(Tiles& tiles, const RowHead& head, PositionRange steps,
                          PositionRange columns, const RowWork& work) {
  constexpr std::int64_t kValueBytes = kMixColumns * 4;
  RowSpace& space = work.space;
  const auto pack = [&](int step) HWY_ATTR {
    const std::byte* runs[2];
    for (int run = 0; run < 2; ++run) {
      runs[run] = rows_of_run<KvHalf::kValues>(head, 2 * step + run, space.copies[run]);
    }
    pack_step<Stored, kWhole>(runs, head.call.layer.row_bytes(), columns, space.values[step % 2][0],
                              work.ahead);
  };
  zero_sums(tiles);
  pack(steps.begin);
  for (int step = steps.begin; step < steps.end; ++step) {
    if (step + 1 < steps.end) {
      pack(step + 1);
    }
    const float* const values = space.values[step % 2][0];
    tiles.template load<4>(space.scores.scores + step * kStep / 2, kScoreStride * 4);
    tiles.template load<6>(values, kValueBytes);
    tiles.template multiply<0, 4, 6>();
    tiles.template load<7>(values + 16, kValueBytes);
    tiles.template multiply<1, 4, 7>();
    if constexpr (kFour) {
      tiles.template load<6>(values + 32, kValueBytes);
      tiles.template multiply<2, 4, 6>();
      tiles.template load<7>(values + 48, kValueBytes);
      tiles.template multiply<3, 4, 7>();
    }
  }
  tiles.template store<0>(space.sums[0], kValueBytes);
  tiles.template store<1>(space.sums[0] + 16, kValueBytes);
  if constexpr (kFour) {
    tiles.template store<2>(space.sums[0] + 32, kValueBytes);
    tiles.template store<3>(space.sums[0] + 48, kValueBytes);
  }
  const int count = round_up(columns.end - columns.begin, kTwoVecs);
  for (int i = 0; i < head.call.group(); ++i) {
    std::copy_n(space.sums[i], count,
                head.records + i * space.dims.record + kRecordSums + columns.begin);
  }
}

// Computes the records of a head's queries over a segment.
template <TileElement kElement, class Value, class Tiles>
void attend_head(Tiles& tiles, const RowHead& head, const RowWork& work) {
  RowSpace& space = work.space;
  const int group = head.call.group();
  const int base = head.runs.base;
  std::fill_n(space.see, group,
              PositionRange{head.runs.seen.begin - base, head.runs.seen.end - base});
  const QueryBlock block{.dims = space.dims,
                         .q = head.q,
                         .scales = head.scales,
                         .see = space.see,
                         .records = head.records,
                         .rows = {0, group},
                         .score_cap = head.call.options.score_cap};
  const PositionRange steps = block.steps();
  score_row<kElement>(tiles, head, steps, work);
  weigh_block(block, space.scores);
  const int head_dim = space.dims.head_dim;
  int column = 0;
  for (; column + kMixColumns <= head_dim; column += kMixColumns) {
    mix_row<Value, true, true>(tiles, head, steps, {column, column + kMixColumns}, work);
  }
  if (column + kMixColumns / 2 < head_dim) {
    mix_row<Value, true, false>(tiles, head, steps, {column, head_dim}, work);
  } else if (column < head_dim) {
    mix_row<Value, false, false>(tiles, head, steps, {column, head_dim}, work);
  }
}

#endif
}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#include "device/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/units.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/lanes-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef PROTEAN_DEVICE_CPU_ATTENTION_ONCE
#define PROTEAN_DEVICE_CPU_ATTENTION_ONCE

namespace protean::cpu {

constexpr int kMaxHeadDim = 512;
// Queries that read the keys and values of a head together.
constexpr int kMaxQueries = 16;
// Positions between two corrections of the running maximum; tiles begin at multiples of it.
constexpr int kTile = 64;

struct AttentionCall {
  KvLayer layer;
  AttentionOptions options;
  const float* q = nullptr;
  float* out = nullptr;

  int group() const { return options.heads / layer.kv_heads; }
};

// The queries of one KV head in a slice are numbered row by row, the head's group within a row.
// One task does `queries` of them.
struct AttentionPart {
  const AttentionSlice* slice = nullptr;
  int kv_head = 0;
  std::int64_t first_query = 0;
  int queries = 0;
};

struct KvRow {
  std::byte* key = nullptr;
  std::byte* value = nullptr;
};

// Where one token of a block keeps its key and value of a head.
inline KvRow kv_row(const KvLayer& layer, BlockId block, int kv_head, int token) {
  const std::int64_t row_bytes = std::int64_t{layer.head_dim} * element_bytes(layer.element);
  const std::int64_t half_bytes = row_bytes * layer.block_tokens;
  std::byte* const key = layer.base + block * layer.block_stride_bytes +
                         std::int64_t{kv_head} * 2 * half_bytes + token * row_bytes;
  return {key, key + half_bytes};
}

}  // namespace protean::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Registers for sums, less what the operands of a multiply-add need.
constexpr int kSumUnits = kLanes == 16 ? 8 : 4;
constexpr int kScoreRows = kLanes == 16 ? 4 : 2;
static_assert(kMaxHeadDim % kUnit == 0);

struct Range {
  int begin = 0;
  int end = 0;
  bool operator==(const Range&) const = default;
};

struct Dims {
  int head_dim = 0;
  int width = 0;  // head_dim rounded up to whole units
  float scale = 0;
};

// What a part keeps from tile to tile. Rows of `width` are in the order of Unit.
struct Queries {
  alignas(64) float q[kMaxQueries * kMaxHeadDim];
  alignas(64) float sums[kMaxQueries * kMaxHeadDim];  // of values, by weight
  alignas(64) float weights[kMaxQueries * kTile];     // scores first, then e^(score - maximum)
  alignas(64) float totals[kMaxQueries * kLanes];     // of weights, by position % kLanes
  float maxima[kMaxQueries];
  float rescale[kMaxQueries];  // of what was summed before this tile
  Range visible[kMaxQueries];  // positions; both ends ascend with the query
  Range in_tile[kMaxQueries];  // the same, cut to the tile and counted from its begin
};

// Where keys and values lie, by position within the tile.
template <class Stored>
struct TileRows {
  const Stored* keys[kTile];
  const Stored* values[kTile];
};

#if HWY_TARGET != HWY_SCALAR
// to[0..3] = the four lanes of every 128-bit block of v added up, times scale.
template <class D>
HWY_INLINE void store_block_sums(D floats, hn::Vec<D> v, float scale, float* to) {
  if constexpr (hn::MaxLanes(D{}) > 4) {
    const hn::Half<D> half;
    store_block_sums(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), scale, to);
  } else {
    hn::StoreU(hn::Mul(v, hn::Set(floats, scale)), floats, to);
  }
}
#endif

// to[0..3] = the sums of the lanes of v[0..3], each added up in the same order, times scale.
HWY_INLINE void store_four_sums(const Vec (&v)[4], float scale, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(v[0]) * scale;
  to[1] = hn::GetLane(v[1]) * scale;
  to[2] = hn::GetLane(v[2]) * scale;
  to[3] = hn::GetLane(v[3]) * scale;
#else
  const Floats floats;
  const hn::Repartition<double, Floats> pairs;
  const auto ab = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(floats, v[0], v[1]),
                                             hn::InterleaveUpper(floats, v[0], v[1])));
  const auto cd = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(floats, v[2], v[3]),
                                             hn::InterleaveUpper(floats, v[2], v[3])));
  const Vec blocks = hn::Add(hn::BitCast(floats, hn::InterleaveLower(pairs, ab, cd)),
                             hn::BitCast(floats, hn::InterleaveUpper(pairs, ab, cd)));
  store_block_sums(floats, blocks, scale, to);
#endif
}

// Scores of R queries against four keys, to weights[r * kTile + 0..3].
template <int R, class Stored>
HWY_NOINLINE void score_four(const float* q, const Stored* const* keys, const Dims& dims,
                             float* weights) {
  const Floats floats;
  Vec dots[R][4];
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int k = 0; k < 4; ++k) {
      dots[r][k] = hn::Zero(floats);
    }
  }
  const auto add_unit = [&](int from, int k, const Unit& key) HWY_ATTR {
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      const Unit query = load_unit(q + r * dims.width + from);
      dots[r][k] = hn::MulAdd(query.a, key.a, dots[r][k]);
      dots[r][k] = hn::MulAdd(query.b, key.b, dots[r][k]);
    }
  };
  int from = 0;
  for (; from + kUnit <= dims.head_dim; from += kUnit) {
    HWY_UNROLL(16)
    for (int k = 0; k < 4; ++k) {
      add_unit(from, k, load_unit(keys[k] + from));
    }
  }
  if (from < dims.head_dim) {
    HWY_UNROLL(16)
    for (int k = 0; k < 4; ++k) {
      add_unit(from, k, load_part(keys[k] + from, dims.head_dim - from));
    }
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    store_four_sums(dots[r], dims.scale, weights + r * kTile);
  }
}

// Asks for a row of the store before it is needed: blocks lie where they lie, so the hardware
// cannot guess the next one.
template <class Stored>
HWY_INLINE void prefetch_row(const Stored* row, int count) {
  constexpr int kCacheLine = 64;
  for (int i = 0; i < count; i += kCacheLine / static_cast<int>(sizeof(Stored))) {
    hwy::Prefetch(row + i);
  }
}

template <class Stored>
void score_tile(Queries& queries, Range which, const TileRows<Stored>& rows, const Dims& dims) {
  const int begin = queries.in_tile[which.begin].begin;
  const int end = queries.in_tile[which.end - 1].end;
  for (int k = begin / 4 * 4; k < end; k += 4) {
    for (int t = std::max(k, begin); t < std::min(k + 4, end); ++t) {
      prefetch_row(rows.values[t], dims.head_dim);
    }
    int i = which.begin;
    const auto next = [&](auto score, int count) {
      for (; i + count <= which.end; i += count) {
        score(queries.q + i * dims.width, rows.keys + k, dims, queries.weights + i * kTile + k);
      }
    };
    next(score_four<kScoreRows, Stored>, kScoreRows);
    next(score_four<1, Stored>, 1);
  }
}

// Turns one query's scores into weights under the new maximum. Positions it does not see weigh
// exactly nothing, whatever their score was.
HWY_NOINLINE void weigh(Queries& queries, int i) {
  const Floats floats;
  const Range see = queries.in_tile[i];
  float* const weights = queries.weights + i * kTile;
  const int first = see.begin / kLanes * kLanes;
  const auto seen_from = [&](int at) HWY_ATTR {
    const auto before = hn::FirstN(floats, static_cast<std::size_t>(std::max(see.begin - at, 0)));
    return hn::AndNot(before, hn::FirstN(floats, static_cast<std::size_t>(see.end - at)));
  };
  const Vec none = hn::Set(floats, -std::numeric_limits<float>::infinity());
  Vec high = none;
  for (int at = first; at < see.end; at += kLanes) {
    high = hn::Max(high, hn::IfThenElse(seen_from(at), hn::Load(floats, weights + at), none));
  }
  const float before = queries.maxima[i];
  const float maximum = std::max(before, hn::GetLane(hn::MaxOfLanes(floats, high)));
  queries.maxima[i] = maximum;
  queries.rescale[i] = before == -std::numeric_limits<float>::infinity()
                           ? 0.0f
                           : hn::GetLane(exp(floats, hn::Set(floats, before - maximum)));
  float* const totals = queries.totals + i * kLanes;
  Vec total = hn::Mul(hn::Load(floats, totals), hn::Set(floats, queries.rescale[i]));
  for (int at = first; at < see.end; at += kLanes) {
    const Vec below = hn::Sub(hn::Load(floats, weights + at), hn::Set(floats, maximum));
    const Vec weight = hn::IfThenElseZero(seen_from(at), exp(floats, below));
    hn::Store(weight, floats, weights + at);
    total = hn::Add(total, weight);
  }
  hn::Store(total, floats, totals);
}

// One run of queries that see the same positions of the tile.
template <class Stored>
struct Mix {
  const Stored* const* values = nullptr;
  const Stored* const* next_keys = nullptr;  // of the next tile: fetched meanwhile
  Range see;
  const float* weights = nullptr;
  const float* rescale = nullptr;
  float* sums = nullptr;
  int width = 0;
};

// sums = sums * rescale + weights * values for R queries and U units of the row from `from` on, of
// which `elements` exist.
template <int R, int U, bool kWhole, class Stored>
HWY_NOINLINE void mix_units(const Mix<Stored>& mix, int from, int elements) {
  const Floats floats;
  Unit sums[R][U];
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    const Vec rescale = hn::Set(floats, mix.rescale[r]);
    HWY_UNROLL(16)
    for (int u = 0; u < U; ++u) {
      const Unit old = load_unit(mix.sums + r * mix.width + from + u * kUnit);
      sums[r][u] = {hn::Mul(old.a, rescale), hn::Mul(old.b, rescale)};
    }
  }
  for (int t = mix.see.begin; t < mix.see.end; ++t) {
    const Stored* const row = mix.values[t] + from;
    HWY_UNROLL(16)
    for (int u = 0; u < U; ++u) {
      hwy::Prefetch(mix.next_keys[t] + from + u * kUnit);
      const Unit value = kWhole ? load_unit(row + u * kUnit) : load_part(row, elements);
      HWY_UNROLL(16)
      for (int r = 0; r < R; ++r) {
        const Vec weight = hn::Set(floats, mix.weights[r * kTile + t]);
        sums[r][u].a = hn::MulAdd(weight, value.a, sums[r][u].a);
        sums[r][u].b = hn::MulAdd(weight, value.b, sums[r][u].b);
      }
    }
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int u = 0; u < U; ++u) {
      float* const to = mix.sums + r * mix.width + from + u * kUnit;
      hn::StoreU(sums[r][u].a, floats, to);
      hn::StoreU(sums[r][u].b, floats, to + kLanes);
    }
  }
}

template <int R, class Stored>
void mix_rows(const Mix<Stored>& mix, int head_dim) {
  constexpr int U = std::max(1, std::min(kSumUnits / R, 4));
  int from = 0;
  for (; from + U * kUnit <= head_dim; from += U * kUnit) {
    mix_units<R, U, true>(mix, from, U * kUnit);
  }
  for (; from + kUnit <= head_dim; from += kUnit) {
    mix_units<R, 1, true>(mix, from, kUnit);
  }
  if (from < head_dim) {
    mix_units<R, 1, false>(mix, from, head_dim - from);
  }
}

template <class Stored>
void mix_tile(Queries& queries, Range which, const TileRows<Stored>& rows,
              const TileRows<Stored>& next_rows, const Dims& dims) {
  for (int i = which.begin; i < which.end;) {
    const Range see = queries.in_tile[i];
    int same = i + 1;
    while (same < which.end && queries.in_tile[same] == see) {
      ++same;
    }
    const auto next = [&](auto mix_them, int count) {
      for (; i + count <= same; i += count) {
        mix_them(Mix<Stored>{rows.values, next_rows.keys, see, queries.weights + i * kTile,
                             queries.rescale + i, queries.sums + i * dims.width, dims.width},
                 dims.head_dim);
      }
    };
    next(mix_rows<kSumUnits, Stored>, kSumUnits);
    next(mix_rows<kSumUnits / 2, Stored>, kSumUnits / 2);
    next(mix_rows<1, Stored>, 1);
  }
}

template <class Stored>
void begin_queries(const AttentionCall& call, const AttentionPart& part, const Dims& dims,
                   Queries& queries) {
  const Floats floats;
  const int group = call.group();
  for (int i = 0; i < part.queries; ++i) {
    const auto row = static_cast<int>((part.first_query + i) / group);
    const std::int64_t head = part.kv_head * group + (part.first_query + i) % group +
                              std::int64_t{part.slice->first_row + row} * call.options.heads;
    alignas(64) float padded[kMaxHeadDim];
    std::fill(std::copy_n(call.q + head * dims.head_dim, dims.head_dim, padded),
              padded + dims.width, 0.0f);
    float* const q = queries.q + i * dims.width;
    for (int from = 0; from < dims.width; from += kUnit) {
      const Unit unit = load_sums<Stored>(padded + from);
      hn::StoreU(unit.a, floats, q + from);
      hn::StoreU(unit.b, floats, q + from + kLanes);
    }
    const int position = part.slice->first_position + row;
    const int window = call.options.window;
    queries.visible[i] = {window > 0 ? std::max(0, position - window + 1) : 0, position + 1};
    queries.maxima[i] = -std::numeric_limits<float>::infinity();
  }
  std::fill_n(queries.sums, part.queries * dims.width, 0.0f);
  std::fill_n(queries.totals, part.queries * kLanes, 0.0f);
}

template <class Stored>
void end_queries(const AttentionCall& call, const AttentionPart& part, const Dims& dims,
                 const Queries& queries) {
  const Floats floats;
  const int group = call.group();
  for (int i = 0; i < part.queries; ++i) {
    const auto row = static_cast<int>((part.first_query + i) / group);
    const std::int64_t head = part.kv_head * group + (part.first_query + i) % group +
                              std::int64_t{part.slice->first_row + row} * call.options.heads;
    const Vec total = hn::SumOfLanes(floats, hn::Load(floats, queries.totals + i * kLanes));
    alignas(64) float padded[kMaxHeadDim];
    for (int from = 0; from < dims.width; from += kUnit) {
      Unit unit = load_unit(queries.sums + i * dims.width + from);
      unit = {hn::Div(unit.a, total), hn::Div(unit.b, total)};
      if (call.options.element == Element::kBf16) {
        unit = {round_bf16(floats, unit.a), round_bf16(floats, unit.b)};
      }
      store_sums<Stored>(unit, padded + from);
    }
    std::copy_n(padded, dims.head_dim, call.out + head * dims.head_dim);
  }
}

// Finds the rows of the tile that begins at `base`, as far as some query of the part sees it. The
// other entries repeat one of them: they are asked for, or read and not used.
template <class Stored>
void find_rows(const AttentionCall& call, const AttentionPart& part, int base, Range visible,
               TileRows<Stored>& rows) {
  const KvLayer& layer = call.layer;
  const int begin = std::max(visible.begin - base, 0);
  const int end = std::min(visible.end - base, kTile);
  int block = (base + begin) / layer.block_tokens;
  int token = (base + begin) % layer.block_tokens;
  for (int t = begin; t < end; ++block, token = 0) {
    const KvRow row =
        kv_row(layer, part.slice->blocks[static_cast<std::size_t>(block)], part.kv_head, token);
    const auto* key = reinterpret_cast<const Stored*>(row.key);
    const auto* value = reinterpret_cast<const Stored*>(row.value);
    for (; token < layer.block_tokens && t < end; ++token, ++t) {
      rows.keys[t] = key;
      rows.values[t] = value;
      key += layer.head_dim;
      value += layer.head_dim;
    }
  }
  std::fill(rows.keys, rows.keys + begin, rows.keys[end - 1]);
  std::fill(rows.keys + end, rows.keys + kTile, rows.keys[end - 1]);
}

template <class Stored>
void attend_part(const AttentionCall& call, const AttentionPart& part) {
  const int head_dim = call.layer.head_dim;
  const Dims dims{head_dim, round_up(head_dim, kUnit),
                  1.0f / std::sqrt(static_cast<float>(head_dim))};
  Queries queries;
  TileRows<Stored> tiles[2];  // this one and the next, in turns
  TileRows<Stored>* rows = &tiles[0];
  TileRows<Stored>* next_rows = &tiles[1];
  begin_queries<Stored>(call, part, dims, queries);
  const int last = part.queries - 1;
  const Range visible{queries.visible[0].begin, queries.visible[last].end};
  const int first_tile = visible.begin / kTile * kTile;
  find_rows(call, part, first_tile, visible, *rows);
  for (int base = first_tile; base < visible.end; base += kTile) {
    Range which{0, part.queries};
    while (which.begin < last && queries.visible[which.begin].end <= base) {
      ++which.begin;
    }
    while (which.end > which.begin + 1 && queries.visible[which.end - 1].begin >= base + kTile) {
      --which.end;
    }
    for (int i = which.begin; i < which.end; ++i) {
      queries.in_tile[i] = {std::max(queries.visible[i].begin - base, 0),
                            std::min(queries.visible[i].end - base, kTile)};
    }
    score_tile(queries, which, *rows, dims);
    for (int i = which.begin; i < which.end; ++i) {
      weigh(queries, i);
    }
    const bool ends = base + kTile >= visible.end;
    if (!ends) {
      find_rows(call, part, base + kTile, visible, *next_rows);
    }
    mix_tile(queries, which, *rows, ends ? *rows : *next_rows, dims);
    std::swap(rows, next_rows);
  }
  end_queries<Stored>(call, part, dims, queries);
}

void attend(const AttentionCall& call, const AttentionPart& part) {
  if (call.layer.element == Element::kF32) {
    attend_part<float>(call, part);
  } else {
    attend_part<std::uint16_t>(call, part);
  }
}

// Keeps one row of a head; count is a multiple of 8.
void store_row(Element element, const float* from, int count, std::byte* to) {
  const hn::CappedTag<float, 8> floats;
  const hn::RebindToSigned<decltype(floats)> ints;
  const hn::Rebind<std::uint16_t, decltype(floats)> halves;
  if (element == Element::kF32) {
    std::copy_n(from, count, reinterpret_cast<float*>(to));
    return;
  }
  auto* const out = reinterpret_cast<std::uint16_t*>(to);
  for (int i = 0; i < count; i += static_cast<int>(hn::Lanes(floats))) {
    const auto rounded = round_bf16(floats, hn::LoadU(floats, from + i));
    const auto upper =
        hn::ShiftRight<16>(hn::BitCast(hn::RebindToUnsigned<decltype(ints)>(), rounded));
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(ints, upper)), halves, out + i);
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(attend);
HWY_EXPORT(store_row);

// Finds which slice a task of the whole call belongs to.
class Numbering {
 public:
  // tasks_of(slice) tasks for each slice, in the order of `order`.
  template <class TasksOf>
  Numbering(std::span<const AttentionSlice> slices, std::vector<int> order, const TasksOf& tasks_of)
      : slices_(slices), order_(std::move(order)) {
    ends_.reserve(order_.size());
    for (const int index : order_) {
      ends_.push_back(total() + tasks_of(slices_[static_cast<std::size_t>(index)]));
    }
  }

  std::int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }

  // The slice, and the task's number within it.
  std::pair<const AttentionSlice&, std::int64_t> at(std::int64_t task) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), task);
    const std::int64_t begin = end == ends_.begin() ? 0 : *(end - 1);
    const int index = order_[static_cast<std::size_t>(end - ends_.begin())];
    return {slices_[static_cast<std::size_t>(index)], task - begin};
  }

 private:
  std::span<const AttentionSlice> slices_;
  std::vector<int> order_;
  std::vector<std::int64_t> ends_;
};

// Longest context first: what is handed out last should be short.
std::vector<int> longest_first(std::span<const AttentionSlice> slices) {
  std::vector<int> order(slices.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](int i) {
    const AttentionSlice& slice = slices[static_cast<std::size_t>(i)];
    return slice.first_position + slice.rows;
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return length(a) > length(b); });
  return order;
}

void check_layer(const KvLayer& layer) {
  check(layer.base != nullptr && layer.kv_heads > 0 && layer.block_tokens > 0, "no KV layer");
  check(layer.head_dim > 0 && layer.head_dim % 8 == 0 && layer.head_dim <= kMaxHeadDim,
        "head_dim must be a multiple of 8, at most 512");
}

void check_slice(const KvLayer& layer, const AttentionSlice& slice, std::int64_t rows) {
  check(slice.first_row >= 0 && slice.rows >= 0 && slice.first_position >= 0, "a negative slice");
  check(std::int64_t{slice.first_row} + slice.rows <= rows, "a slice beyond the batch");
  check(slice.rows == 0 ||
            (slice.first_position + slice.rows - 1) / layer.block_tokens < std::ssize(slice.blocks),
        "a slice beyond its block table");
}

}  // namespace

void store_kv(Team& team, const KvLayer& layer, std::span<const AttentionSlice> slices,
              std::span<const float> k, std::span<const float> v) {
  constexpr std::int64_t kTaskRows = 16;
  check_layer(layer);
  const std::int64_t width = std::int64_t{layer.kv_heads} * layer.head_dim;
  check(k.size() == v.size() && std::ssize(k) % width == 0, "k and v are not rows of KV heads");
  for (const AttentionSlice& slice : slices) {
    check_slice(layer, slice, std::ssize(k) / width);
  }
  const Numbering tasks(slices, longest_first(slices), [](const AttentionSlice& slice) {
    return ceil_div<std::int64_t>(slice.rows, kTaskRows);
  });
  team.run(tasks.total(), [&](std::int64_t index, int) {
    const auto [slice, task] = tasks.at(index);
    const auto end = static_cast<int>(std::min<std::int64_t>((task + 1) * kTaskRows, slice.rows));
    for (auto row = static_cast<int>(task * kTaskRows); row < end; ++row) {
      const int position = slice.first_position + row;
      const BlockId block = slice.blocks[static_cast<std::size_t>(position / layer.block_tokens)];
      const std::int64_t from = (std::int64_t{slice.first_row} + row) * width;
      for (int head = 0; head < layer.kv_heads; ++head) {
        const KvRow to = kv_row(layer, block, head, position % layer.block_tokens);
        const std::int64_t at = from + std::int64_t{head} * layer.head_dim;
        HWY_DYNAMIC_DISPATCH(store_row)(layer.element, k.data() + at, layer.head_dim, to.key);
        HWY_DYNAMIC_DISPATCH(store_row)(layer.element, v.data() + at, layer.head_dim, to.value);
      }
    }
  });
}

void attention(Team& team, const KvLayer& layer, std::span<const AttentionSlice> slices,
               const AttentionOptions& options, const AttentionRows& rows) {
  check_layer(layer);
  check(options.heads > 0 && options.heads % layer.kv_heads == 0,
        "query heads are not a multiple of KV heads");
  const std::int64_t width = std::int64_t{options.heads} * layer.head_dim;
  const auto& [q, out] = rows;
  check(q.size() == out.size() && std::ssize(q) % width == 0, "q and out are not rows of heads");
  for (const AttentionSlice& slice : slices) {
    check_slice(layer, slice, std::ssize(q) / width);
  }
  const AttentionCall call{layer, options, q.data(), out.data()};
  const auto queries_of = [&](const AttentionSlice& slice) {
    return std::int64_t{slice.rows} * call.group();
  };
  const auto parts_of = [&](const AttentionSlice& slice) {
    return ceil_div<std::int64_t>(queries_of(slice), kMaxQueries);
  };
  const Numbering tasks(slices, longest_first(slices), [&](const AttentionSlice& slice) {
    return parts_of(slice) * layer.kv_heads;
  });
  team.run(tasks.total(), [&](std::int64_t index, int) {
    const auto [slice, task] = tasks.at(index);
    const std::int64_t parts = parts_of(slice);
    const std::int64_t queries = queries_of(slice);
    const std::int64_t part = parts - 1 - task % parts;  // late rows see most: they go first
    const std::int64_t first = queries * part / parts;
    const std::int64_t end = queries * (part + 1) / parts;
    HWY_DYNAMIC_DISPATCH(attend)
    (call, {&slice, static_cast<int>(task / parts), first, static_cast<int>(end - first)});
  });
}

}  // namespace protean::cpu
#endif

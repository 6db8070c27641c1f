#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/attention.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {

constexpr int kMaxHeadDim = 512;
// The most queries that share reading the keys and values of a head, so that all fit in L2: whole
// tiles of AMX, or whole blocks of vectors of all instruction sets.
constexpr int kMaxQueries = 256;
constexpr int kMaxVectorQueries = 120;
// Positions that are summed before they are merged. Segments begin at multiples of this.
constexpr int kSegment = 256;

// The record of a query over some positions, as floats: the sums of e^(score - maximum) by lane,
// the maximum of the scores, and the sums of values weighted by e^(score - maximum).
constexpr int kRecordMaximum = 16;
constexpr int kRecordSums = 32;
constexpr int record_floats(int head_dim) {
  return kRecordSums + (head_dim + 31) / 32 * 32;
}
constexpr int kQueryFloats = kMaxQueries * record_floats(128);
static_assert(kQueryFloats >= kTileRows16 * record_floats(kMaxHeadDim));

struct AttentionCall {
  KvLayer layer;
  AttentionOptions options;  // the instruction set is not kBest
  const float* q = nullptr;
  float* out = nullptr;

  int group() const { return options.heads / layer.kv_heads; }
  float scale() const {
    return options.scale > 0.0F ? options.scale
                                : 1.0F / std::sqrt(static_cast<float>(layer.head_dim));
  }
  bool tiled() const {
    return options.isa == MatmulIsa::kAmx || options.isa == MatmulIsa::kEmulatedAmx;
  }
  // Returns true if queries and weights are pairs of bf16.
  bool paired() const { return tiled() || options.isa == MatmulIsa::kDot; }
  int max_queries() const {
    const int fit = kQueryFloats / record();
    return tiled() ? std::min(kMaxQueries, fit / kTileRows16 * kTileRows16)
                   : std::min(kMaxVectorQueries, fit);
  }
  int record() const { return record_floats(layer.head_dim); }
  // Returns true if the slice has one row whose heads are computed by tiles of keys. Queries of two
  // bytes take two columns each.
  bool by_row(const AttentionSlice& slice) const {
    const int columns = layer.element == KvElement::kInt8 ? 2 : 1;
    return tiled() && slice.rows == 1 && columns * group() <= kTileRows16;
  }
};

struct PositionRange {
  int begin = 0;
  int end = 0;
  bool operator==(const PositionRange&) const = default;

  PositionRange within(PositionRange other) const {
    return {std::max(begin, other.begin), std::min(end, other.end)};
  }
  bool empty() const { return begin >= end; }
};

// Some queries of one KV head in a slice, or those of consecutive KV heads in a slice of one row.
// Queries are numbered by row, and within a row by query head.
struct QuerySpan {
  const AttentionSlice* slice = nullptr;
  int kv_head = 0;  // the first
  int kv_heads = 1;
  int first_query = 0;
  int queries = 0;

  int row(const AttentionCall& call, int query) const {
    return (first_query + query) / (kv_heads * call.group());
  }
  // Returns the offset of a query in q and out.
  std::int64_t offset(const AttentionCall& call, int query) const {
    const std::int64_t head =
        kv_head * call.group() + (first_query + query) % (kv_heads * call.group());
    const std::int64_t batch_row = std::int64_t{slice->first_row} + row(call, query);
    return (batch_row * call.options.heads + head) * call.layer.head_dim;
  }
  PositionRange visible(const AttentionCall& call, int query) const {
    const int position = slice->first_position + row(call, query);
    const int window = call.options.window;
    return {window > 0 ? std::max(0, position - window + 1) : 0, position + 1};
  }
  // Returns the positions that any query sees. Both ends ascend with the query.
  PositionRange visible(const AttentionCall& call) const {
    return {visible(call, 0).begin, visible(call, queries - 1).end};
  }
  PositionRange segments(const AttentionCall& call) const {
    const PositionRange all = visible(call);
    return {all.begin / kSegment, (all.end + kSegment - 1) / kSegment};
  }
};

// Returns the spans of slices. Long ones come first, so that the last tasks are short.
std::vector<QuerySpan> spans_of(const AttentionCall& call, std::span<const AttentionSlice> slices,
                                int threads);

// Returns true if the threads take about the same time when each span is a task.
bool balanced(const AttentionCall& call, const std::vector<QuerySpan>& spans, int threads);

// Returns how many segments of a span of one row are a task if spans are not balanced, so that most
// segments are prefetched while others are computed and all threads have work.
int row_segments_of_task(const AttentionCall& call, const std::vector<QuerySpan>& spans,
                         int threads);

inline PositionRange segment_range(int segment) {
  return {segment * kSegment, (segment + 1) * kSegment};
}

}  // namespace protean::cpu

#include "device/cpu/query_spans.h"

#include <algorithm>

#include "base/units.h"

namespace protean::cpu {
namespace {

constexpr int kSpansPerThread = 4;  // enough to balance the threads

// Returns the segments that a row sees.
int segments_of_row(const AttentionCall& call, const AttentionSlice& slice) {
  const PositionRange segments = QuerySpan{&slice, 0, 1, 0, 1}.segments(call);
  return segments.end - segments.begin;
}

// Returns how many KV heads of rows are computed together: as many as keep a segment and the next
// in half of a small L2, but few enough for the spans of few rows to balance the threads. The spans
// of one row take the same time.
int heads_of_row(const AttentionCall& call, std::int64_t rows, std::int64_t threads) {
  constexpr std::int64_t kSegmentBytes = std::int64_t{1} << 18;
  const KvLayer& layer = call.layer;
  const std::int64_t head_bytes = kSegment * layer.slot_bytes() / layer.block_tokens;
  const std::int64_t most = std::max<std::int64_t>(
      1, std::min<std::int64_t>(kSegmentBytes / head_bytes, call.max_queries() / call.group()));
  const std::int64_t least_runs = ceil_div<std::int64_t>(layer.kv_heads, most);
  const std::int64_t runs = rows <= 1
                                ? round_up(least_runs, threads)
                                : std::max(least_runs, ceil_div(kSpansPerThread * threads, rows));
  return static_cast<int>(ceil_div<std::int64_t>(layer.kv_heads, runs));
}

}  // namespace

std::vector<QuerySpan> spans_of(const AttentionCall& call, std::span<const AttentionSlice> slices,
                                int threads) {
  std::vector<const AttentionSlice*> order(slices.size());
  std::transform(slices.begin(), slices.end(), order.begin(),
                 [](const AttentionSlice& slice) { return &slice; });
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->first_position + a->rows > b->first_position + b->rows;
  });
  const auto rows = std::count_if(slices.begin(), slices.end(),
                                  [&](const AttentionSlice& slice) { return call.by_row(slice); });
  const int row_heads = heads_of_row(call, rows, threads);
  const int most = call.max_queries();
  std::vector<QuerySpan> spans;
  for (const AttentionSlice* slice : order) {
    const int heads = call.by_row(*slice) ? row_heads : 1;
    for (int end = slice->rows * call.group(); end > 0; end -= most) {  // later rows see more
      const int first = std::max(0, end - most);
      for (int head = 0; head < call.layer.kv_heads; head += heads) {
        const int count = std::min(heads, call.layer.kv_heads - head);
        spans.push_back({slice, head, count, first, count * (end - first)});
      }
    }
  }
  return spans;
}

int row_segments_of_task(const AttentionCall& call, const std::vector<QuerySpan>& spans,
                         int threads) {
  constexpr int kTasksPerThread = 2;
  int segments = 0;
  for (const QuerySpan& span : spans) {
    segments += call.by_row(*span.slice) ? segments_of_row(call, *span.slice) : 0;
  }
  return std::max(1, ceil_div(segments, kTasksPerThread * threads));
}

bool balanced(const AttentionCall& call, const std::vector<QuerySpan>& spans, int threads) {
  const bool one_row = !spans.empty() && spans.front().slice == spans.back().slice &&
                       call.by_row(*spans.front().slice);
  return threads == 1 || std::ssize(spans) >= kSpansPerThread * threads ||
         (one_row && std::ssize(spans) % threads == 0);
}

}  // namespace protean::cpu

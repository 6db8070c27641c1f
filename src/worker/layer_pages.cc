#include "worker/layer_pages.h"

#include <utility>

#include "base/check.h"
#include "cost/pages.h"

namespace protean {

Result<FilledPages> fill_pages(cpu::PagePool& pool, const ModelSpec& spec, const HalfVariant& which,
                               const ReadHalf& read, const cpu::MayGoOn& may_go_on) {
  // As many as whoever plans morphs counts.
  const std::int64_t pages = half_pages(spec, which.half, which.precision, pool.page_bytes());
  const std::int64_t size = half_size(spec, which.half, which.precision);
  check(size <= pages * pool.page_bytes(), "cost counts the bytes that a half takes");
  Result<cpu::PageRange> range = cpu::PageRange::reserve(pool, pages);
  if (!range) {
    return range.error();
  }
  if (const Status attached = range->attach(pages, may_go_on); !attached) {
    return attached.error();
  }
  const Pace pace = [&](std::int64_t) { return !may_go_on || may_go_on(); };
  Result<std::string> remark = read(which, {range->data(), static_cast<std::size_t>(size)}, pace);
  if (!remark) {
    return remark.error();
  }
  return FilledPages{std::move(*range), std::move(*remark)};
}

void LayerPages::swap(ModelWeights& weights, const ModelSpec& spec, const HalfVariant& which,
                      cpu::PageRange& pages) {
  bind_half(weights.layers.at(static_cast<std::size_t>(which.layer)), spec, which.half,
            which.precision, pages.data());
  std::swap(ranges_.at(static_cast<std::size_t>(which.layer))[static_cast<std::size_t>(which.half)],
            pages);
}

std::int64_t LayerPages::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& halves : ranges_) {
    for (const cpu::PageRange& range : halves) {
      bytes += range.bytes();
    }
  }
  return bytes;
}

}  // namespace protean

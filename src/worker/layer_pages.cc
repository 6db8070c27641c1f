#include "worker/layer_pages.h"

#include <utility>

#include "base/check.h"
#include "cost/pages.h"

namespace protean {

Result<FilledPages> fill_pages(cpu::PagePool& pool, const HalfInUnits& what, const ReadHalf& read,
                               const cpu::MayGoOn& may_go_on) {
  const SwapHalf& half = what.half;
  const int units = what.units;
  // As many as whoever plans morphs counts.
  const std::int64_t pages = half_pages(what.spec, half.half, half.to, pool.page_bytes(), units);
  const std::int64_t unit_bytes = pages / units * pool.page_bytes();
  const std::int64_t size = half_size(unit_spec(what.spec, units), half.half, half.to);
  check(size <= unit_bytes, "cost counts the bytes that a half takes");
  Result<cpu::PageRange> range = cpu::PageRange::reserve(pool, pages);
  if (!range) {
    return range.error();
  }
  if (const Status attached = range->attach(pages, may_go_on); !attached) {
    return attached.error();
  }
  const Pace pace = [&](std::int64_t) { return !may_go_on || may_go_on(); };
  FilledPages filled{std::move(*range), {}};
  for (int unit = 0; unit < units; ++unit) {
    Result<std::string> remark =
        read({half.layer, half.half, half.to, unit, units},
             {filled.pages.data() + unit * unit_bytes, static_cast<std::size_t>(size)}, pace);
    if (!remark) {
      return remark.error();
    }
    filled.remark = filled.remark.empty() ? std::move(*remark) : std::move(filled.remark);
  }
  return filled;
}

void LayerPages::swap(ModelWeights& weights, const SwapHalf& half, cpu::PageRange& pages) {
  const TpUnits& units = weights.units;
  check(units.count == units.of, "all units of a half are swapped together");
  for (int i = 0; i < units.count; ++i) {
    bind_half(weights.unit(half.layer, i), weights.unit_spec, half.half, half.to,
              pages.data() + i * (pages.bytes() / units.count));
  }
  std::swap(ranges_.at(static_cast<std::size_t>(half.layer))[static_cast<std::size_t>(half.half)],
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

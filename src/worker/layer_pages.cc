#include "worker/layer_pages.h"

#include <utility>

#include "base/check.h"
#include "cost/pages.h"
#include "cost/tp_units.h"

namespace protean {

Result<FilledPages> fill_pages(cpu::PagePool& pool, const PartInUnits& what, const ReadPart& read,
                               const cpu::MayGoOn& may_go_on) {
  const auto& [layer, part, to] = what.part;
  const int units = units_of(part, what.units);
  // As many as whoever plans morphs counts.
  const std::int64_t pages = part_pages(what.spec, part, to, pool.page_bytes(), what.units);
  const std::int64_t unit_bytes = pages / units * pool.page_bytes();
  const std::int64_t size = part_size(unit_spec(what.spec, units), part, to);
  check(size <= unit_bytes, "cost counts the bytes that a part takes");
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
        read({layer, part, to, unit, units},
             {filled.pages.data() + unit * unit_bytes, static_cast<std::size_t>(size)}, pace);
    if (!remark) {
      return remark.error();
    }
    filled.remark = filled.remark.empty() ? std::move(*remark) : std::move(filled.remark);
  }
  return filled;
}

void LayerPages::swap(ModelWeights& weights, const SwapPart& part, cpu::PageRange& pages) {
  if (part.part == ModelPart::kTables) {
    bind_tables(weights.tables, weights.unit_spec, part.to, pages.data());
    std::swap(tables_, pages);
    return;
  }
  const TpUnits& units = weights.units;
  check(units.count == units.of, "all units of a half are swapped together");
  for (int i = 0; i < units.count; ++i) {
    bind_half(weights.unit(part.layer, i), weights.unit_spec, part.part, part.to,
              pages.data() + i * (pages.bytes() / units.count));
  }
  std::swap(halves_.at(static_cast<std::size_t>(part.layer))[static_cast<std::size_t>(part.part)],
            pages);
}

std::int64_t LayerPages::bytes() const {
  std::int64_t bytes = tables_.bytes();
  for (const auto& halves : halves_) {
    for (const cpu::PageRange& range : halves) {
      bytes += range.bytes();
    }
  }
  return bytes;
}

}  // namespace protean

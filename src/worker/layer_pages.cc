#include "worker/layer_pages.h"

#include <utility>

#include "base/check.h"
#include "cost/pages.h"
#include "cost/shards.h"

namespace protean {

Result<FilledPages> fill_pages(cpu::PagePool& pool, const ShardedSwap& what,
                               const ReadComponent& read, const cpu::MayGoOn& may_go_on) {
  const auto& [layer, component, to] = what.component;
  check(!what.run.empty(), "the device holds shards of the component");
  // The same number as weight_pages_on() counts.
  const std::int64_t each =
      component_pages(what.spec, component, to, pool.page_bytes(), what.shards) / what.shards;
  const std::int64_t pages = each * what.run.count;
  const std::int64_t shard_bytes = each * pool.page_bytes();
  const std::int64_t size = component_size(shard_spec(what.spec, what.shards), component, to);
  check(size <= shard_bytes, "cost counts the bytes that a component takes");
  Result<cpu::PageRange> range = cpu::PageRange::reserve(pool, pages);
  if (!range) {
    return range.error();
  }
  if (const Status attached = range->attach(pages, may_go_on); !attached) {
    return attached.error();
  }
  const Pace pace = [&](std::int64_t) { return !may_go_on || may_go_on(); };
  FilledPages filled{std::move(*range), {}};
  for (int i = 0; i < what.run.count; ++i) {
    Result<std::string> remark =
        read({layer, component, to, what.run.first + i, what.shards},
             {filled.pages.data() + i * shard_bytes, static_cast<std::size_t>(size)}, pace);
    if (!remark) {
      return remark.error();
    }
    filled.remark = filled.remark.empty() ? std::move(*remark) : std::move(filled.remark);
  }
  return filled;
}

void LayerPages::swap(ModelWeights& weights, const SwapComponent& component,
                      cpu::PageRange& pages) {
  const ShardRun& run = weights.holding.of(component.layer, component.component);
  const bool embeddings = component.component == Component::kEmbeddings;
  for (int i = 0; i < run.count; ++i) {
    std::byte* const memory = pages.data() + i * (pages.bytes() / run.count);
    const int shard = run.first + i;
    if (embeddings) {
      bind_embeddings(weights.embeddings[static_cast<std::size_t>(shard)], weights.shard_spec,
                      component.to, memory);
    } else {
      bind_half(weights.shard(component.layer, shard), weights.shard_spec, component.component,
                component.to, memory);
    }
  }
  std::swap(embeddings ? embeddings_
                       : halves_.at(static_cast<std::size_t>(
                             component.layer))[static_cast<std::size_t>(component.component)],
            pages);
}

std::int64_t LayerPages::bytes() const {
  std::int64_t bytes = embeddings_.bytes();
  for (const auto& halves : halves_) {
    for (const cpu::PageRange& range : halves) {
      bytes += range.bytes();
    }
  }
  return bytes;
}

}  // namespace protean

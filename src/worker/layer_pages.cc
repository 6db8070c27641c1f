#include "worker/layer_pages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "cost/pages.h"
#include "cost/shards.h"

namespace protean {

Result<FilledPages> fill_pages(cpu::PagePool& pool, const ShardedSwap& what,
                               const ReadComponent& read, const cpu::MayGoOn& may_go_on) {
  const auto& [layer, component, to] = what.component;
  check(!what.run.empty(), "the device holds shards of the component");
  // The same number as weight_pages_on() counts.
  const std::int64_t pages =
      component_pages(what.spec, component, to, pool.page_bytes(), what.shards) / what.shards;
  const std::int64_t size = component_size(shard_spec(what.spec, what.shards), component, to);
  const std::int64_t tail = std::max<std::int64_t>(0, size - pages * pool.page_bytes());
  const Pace pace = [&](std::int64_t) { return !may_go_on || may_go_on(); };
  FilledPages filled;
  for (int shard = what.run.first; shard < what.run.end(); ++shard) {
    Result<cpu::PageRange> range =
        cpu::PageRange::reserve(pool, pages + ceil_div(tail, pool.page_bytes()));
    if (!range) {
      return range.error();
    }
    if (const Status attached = range->attach(pages, may_go_on); !attached) {
      return attached.error();
    }
    if (const Status attached = range->attach_tail(tail); !attached) {
      return attached.error();
    }
    Result<std::string> remark = read({layer, component, to, shard, what.shards},
                                      {range->data(), static_cast<std::size_t>(size)}, pace);
    if (!remark) {
      return remark.error();
    }
    filled.remark = filled.remark.empty() ? std::move(*remark) : std::move(filled.remark);
    filled.shards.push_back(std::move(*range));
  }
  return filled;
}

void LayerPages::swap(ModelWeights& weights, const SwapComponent& component, ShardMemory& memory) {
  const ShardRun& run = weights.holding.of(component.layer, component.component);
  const bool embeddings = component.component == Component::kEmbeddings;
  check(std::ssize(memory) == run.count, "every shard here has memory");
  for (int i = 0; i < run.count; ++i) {
    std::byte* const data = memory[static_cast<std::size_t>(i)].data();
    const int shard = run.first + i;
    if (embeddings) {
      bind_embeddings(weights.embeddings[static_cast<std::size_t>(shard)], weights.shard_spec,
                      component.to, data);
    } else {
      bind_half(weights.shard(component.layer, shard), weights.shard_spec, component.component,
                component.to, data);
    }
  }
  std::swap(embeddings ? embeddings_
                       : halves_.at(static_cast<std::size_t>(
                             component.layer))[static_cast<std::size_t>(component.component)],
            memory);
}

std::int64_t LayerPages::bytes() const {
  std::int64_t bytes = 0;
  const auto add = [&](const ShardMemory& memory) {
    for (const cpu::PageRange& range : memory) {
      bytes += range.bytes();
    }
  };
  add(embeddings_);
  for (const auto& halves : halves_) {
    std::for_each(halves.begin(), halves.end(), add);
  }
  return bytes;
}

}  // namespace protean

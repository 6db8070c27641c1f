#include "worker/layer_pages.h"

#include <utility>

#include "base/check.h"
#include "cost/pages.h"
#include "cost/shards.h"

namespace protean {

Result<FilledPages> fill_pages(cpu::PagePool& pool, const ShardedSwap& what,
                               const ReadComponent& read, const cpu::MayGoOn& may_go_on) {
  const auto& [layer, component, to] = what.component;
  const int shards = shards_of(component, what.shards);
  // The same number as pages_to_prepare() counts.
  const std::int64_t pages =
      component_pages(what.spec, component, to, pool.page_bytes(), what.shards);
  const std::int64_t shard_bytes = pages / shards * pool.page_bytes();
  const std::int64_t size = component_size(shard_spec(what.spec, shards), component, to);
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
  for (int shard = 0; shard < shards; ++shard) {
    Result<std::string> remark =
        read({layer, component, to, shard, shards},
             {filled.pages.data() + shard * shard_bytes, static_cast<std::size_t>(size)}, pace);
    if (!remark) {
      return remark.error();
    }
    filled.remark = filled.remark.empty() ? std::move(*remark) : std::move(filled.remark);
  }
  return filled;
}

void LayerPages::swap(ModelWeights& weights, const SwapComponent& component,
                      cpu::PageRange& pages) {
  if (component.component == Component::kEmbeddings) {
    bind_embeddings(weights.embeddings, weights.shard_spec, component.to, pages.data());
    std::swap(embeddings_, pages);
    return;
  }
  const ShardRun& shards = weights.shards;
  check(shards.count == shards.of, "all shards of a half are swapped together");
  for (int i = 0; i < shards.count; ++i) {
    bind_half(weights.shard(component.layer, i), weights.shard_spec, component.component,
              component.to, pages.data() + i * (pages.bytes() / shards.count));
  }
  std::swap(halves_.at(static_cast<std::size_t>(
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

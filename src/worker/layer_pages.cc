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
  // The same number as weight_pages_on() counts.
  const std::int64_t pages =
      component_pages(what.spec, component, to, pool.page_bytes(), what.shards) / what.shards;
  const std::int64_t size = component_size(shard_spec(what.spec, what.shards), component, to);
  const std::int64_t tail = std::max<std::int64_t>(0, size - pages * pool.page_bytes());
  const Pace pace = [&](std::int64_t) { return !may_go_on || may_go_on(); };
  FilledPages filled;
  for (const int shard : what.wanted) {
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
    filled.shards.push_back(std::make_shared<cpu::PageRange>(std::move(*range)));
  }
  return filled;
}

namespace {

void bind(ModelWeights& weights, const SwapComponent& component, int shard, std::byte* data) {
  if (component.component == Component::kEmbeddings) {
    bind_embeddings(weights.embeddings[static_cast<std::size_t>(shard)], weights.shard_spec,
                    component.to, data);
  } else {
    bind_half(weights.shard(component.layer, shard), weights.shard_spec, component.component,
              component.to, data);
  }
}

}  // namespace

std::vector<int> shards_of(const ShardRun& run, const ShardRun& had) {
  std::vector<int> shards;
  for (int shard = run.first; shard < run.end(); ++shard) {
    if (!had.has(shard)) {
      shards.push_back(shard);
    }
  }
  return shards;
}

void LayerPages::swap(ModelWeights& weights, const SwapComponent& component, ShardMemory& memory) {
  const std::lock_guard lock(*changing_);
  const ShardRun run =
      here(component.component, weights.holding.of(component.layer, component.component));
  check(std::ssize(memory) == run.count, "every shard here has memory");
  for (int i = 0; i < run.count; ++i) {
    bind(weights, component, run.first + i, memory[static_cast<std::size_t>(i)]->data());
  }
  std::swap(of(component.layer, component.component), memory);
}

void LayerPages::hold(ModelWeights& weights, const SwapComponent& component, const ShardRun& run,
                      ShardMemory& memory) {
  const std::lock_guard lock(*changing_);
  ShardRun& held = weights.holding.of(component.layer, component.component);
  const ShardRun before = here(component.component, held);
  const ShardRun after = here(component.component, run);
  ShardMemory& mine = of(component.layer, component.component);
  check(std::ssize(mine) == before.count, "every shard here has memory");
  check(std::ssize(memory) == new_shards(after, before), "every new shard has memory");
  ShardMemory next;
  auto fetched = memory.begin();
  for (int shard = after.first; shard < after.end(); ++shard) {
    if (before.has(shard)) {
      next.push_back(std::move(mine[static_cast<std::size_t>(shard - before.first)]));
      continue;
    }
    bind(weights, component, shard, (*fetched)->data());
    next.push_back(std::move(*fetched++));
  }
  memory = std::move(mine);  // what stays is moved out
  std::erase(memory, nullptr);
  mine = std::move(next);
  held = run;
}

std::shared_ptr<const std::byte> LayerPages::find_shard(const ModelWeights& weights,
                                                        const ComponentVariant& which) const {
  const std::lock_guard lock(*changing_);
  const ShardRun held = here(which.component, weights.holding.of(which.layer, which.component));
  if (!held.has(which.shard)) {
    return nullptr;
  }
  const ShardMemory& memory = which.component == Component::kEmbeddings
                                  ? embeddings_
                                  : halves_.at(static_cast<std::size_t>(
                                        which.layer))[static_cast<std::size_t>(which.component)];
  const auto& range = memory[static_cast<std::size_t>(which.shard - held.first)];
  return {range, range->data()};
}

std::int64_t LayerPages::bytes() const {
  std::int64_t bytes = 0;
  const auto add = [&](const ShardMemory& memory) {
    for (const auto& range : memory) {
      bytes += range->bytes();
    }
  };
  add(embeddings_);
  for (const auto& halves : halves_) {
    std::for_each(halves.begin(), halves.end(), add);
  }
  return bytes;
}

}  // namespace protean

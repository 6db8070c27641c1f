#include "worker/layer_swapper.h"

#include <utility>

#include "base/check.h"

namespace protean {

void LayerSwapper::prepare(MorphId id, const SwapComponent& swap) {
  auto under_way = std::make_shared<Swap>();
  under_way->step = swap;
  {
    const std::lock_guard lock(mutex_);
    check(swaps_.emplace(id, under_way).second, "a morph's step is prepared once");
  }
  parts_.thread->post([this, id, under_way] { fill(id, under_way); });
}

Result<FilledPages> LayerSwapper::fill_pages_of(const Swap& swap) {
  if (parts_.read == nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "there are no variants to read: start with a variant cache");
  }
  if (swap.step.layer < 0 || swap.step.layer >= parts_.spec.layers) {
    return make_error(ErrorCode::kInvalidArgument, "the model has layers 0 to {}",
                      parts_.spec.layers - 1);
  }
  const ShardRun& run = parts_.holding.of(swap.step.layer, swap.step.component);
  return fill_pages(*parts_.pool, {parts_.spec, swap.step, run, parts_.shards}, parts_.read,
                    [&] { return !swap.aborted && parts_.thread->may_go_on() && !swap.aborted; });
}

void LayerSwapper::fill(MorphId id, const std::shared_ptr<Swap>& swap) {
  if (swap->aborted) {
    return;
  }
  Result<FilledPages> filled = fill_pages_of(*swap);
  MorphReady ready{.id = id, .failure = std::nullopt};
  {
    const std::lock_guard lock(mutex_);
    if (swap->aborted) {
      return;
    }
    if (filled) {
      swap->memory = std::move(filled->shards);
      swap->ready = true;
      ready.remark = std::move(filled->remark);
    } else {
      ready.failure = make_error(filled.error().code, "{}: {}", to_string(MorphStep(swap->step)),
                                 filled.error().message);
      swaps_.erase(id);
    }
  }
  parts_.handlers.ready(std::move(ready));
}

void LayerSwapper::abort(MorphId id) {
  std::shared_ptr<Swap> swap;
  {
    const std::lock_guard lock(mutex_);
    const auto found = swaps_.find(id);
    if (found == swaps_.end()) {
      return;
    }
    swap = std::move(found->second);
    swap->aborted = true;
    swaps_.erase(found);
  }
  // In the background, so that the caller does not wait for pages to be unmapped.
  parts_.thread->post_urgent([swap = std::move(swap)] { swap->memory.clear(); });
}

std::optional<LayerSwapper::Filled> LayerSwapper::take(MorphId id) {
  const std::lock_guard lock(mutex_);
  const auto found = swaps_.find(id);
  if (found == swaps_.end()) {
    return std::nullopt;
  }
  const std::shared_ptr<Swap> swap = std::move(found->second);
  check(swap->ready, "what is committed is ready");
  swaps_.erase(found);
  return Filled{swap->step, std::move(swap->memory)};
}

void LayerSwapper::give_back(MorphId id, ShardMemory memory) {
  auto old = std::make_shared<ShardMemory>(std::move(memory));
  parts_.thread->post_urgent([this, id, old = std::move(old)] {
    old->clear();
    parts_.handlers.done({.id = id, .pages_free = parts_.pool->free_pages()});
  });
}

}  // namespace protean

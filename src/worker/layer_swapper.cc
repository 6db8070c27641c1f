#include "worker/layer_swapper.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr std::size_t kFetchedAtOnceBytes = 512 * kKiB;  // takes less than a millisecond

Result<std::string> copy_paced(const std::byte* from, std::span<std::byte> memory,
                               const Pace& pace) {
  for (std::size_t done = 0; done < memory.size(); done += kFetchedAtOnceBytes) {
    const std::size_t bytes = std::min(kFetchedAtOnceBytes, memory.size() - done);
    if (pace && !pace(static_cast<std::int64_t>(bytes))) {
      return make_error(ErrorCode::kUnavailable, "copying weights was given up");
    }
    std::memcpy(memory.data() + done, from + done, bytes);
  }
  return std::string();
}

}  // namespace

void LayerSwapper::prepare(MorphId id, WantedWeights wanted) {
  auto under_way = std::make_shared<Swap>();
  under_way->wanted = std::move(wanted);
  {
    const std::lock_guard lock(mutex_);
    check(swaps_.emplace(id, under_way).second, "a morph's step is prepared once");
  }
  setup_.thread->post([this, id, under_way] { fill(id, under_way); });
}

Result<FilledPages> LayerSwapper::fill_pages_of(const Swap& swap) {
  const WantedWeights& wanted = swap.wanted;
  const auto may_go_on = [&] {
    return !swap.aborted && setup_.thread->may_go_on() && !swap.aborted;
  };
  const ReadComponent read = [&](const ComponentVariant& which, std::span<std::byte> memory,
                                 const Pace& pace) -> Result<std::string> {
    // The other device may drop the shard meanwhile; its pages stay until the copy has ended.
    const auto peer = wanted.peer ? wanted.peer(which.shard) : nullptr;
    if (peer != nullptr) {
      Result<std::string> copied = copy_paced(peer.get(), memory, pace);
      return !copied || wanted.peer_is_sound(which.shard)
                 ? copied
                 : make_error(ErrorCode::kUnavailable,
                              "the device that it was copied from has lost memory");
    }
    if (setup_.read == nullptr) {
      return make_error(ErrorCode::kUnsupported,
                        "there are no variants to read: start with a variant cache");
    }
    return setup_.read(which, memory, pace);
  };
  return fill_pages(*setup_.pool, {setup_.spec, wanted.component, wanted.shards, setup_.shards},
                    read, may_go_on);
}

Status LayerSwapper::make_room(const Swap& swap) {
  const auto& room = swap.wanted.kv;
  return room ? setup_.kv->make_room(room->layer, room->kv_heads, room->places,
                                     [&] { return !swap.aborted && setup_.thread->may_go_on(); })
              : Status();
}

void LayerSwapper::trim(const std::optional<WantedWeights::KvRoom>& room) {
  if (room) {
    setup_.kv->trim(room->layer);
  }
}

void LayerSwapper::fill(MorphId id, const std::shared_ptr<Swap>& swap) {
  if (swap->aborted) {
    return;
  }
  Result<FilledPages> filled = fill_pages_of(*swap);
  if (filled) {
    if (const Status room = make_room(*swap); !room) {
      filled = room.error();
    }
  }
  MorphReady ready{.id = id, .failure = std::nullopt};
  {
    const std::lock_guard lock(mutex_);
    if (swap->aborted) {
      trim(swap->wanted.kv);
      return;
    }
    if (filled) {
      swap->memory = std::move(filled->shards);
      swap->ready = true;
      ready.remark = std::move(filled->remark);
    } else {
      ready.failure = make_error(filled.error().code, "{}: {}", to_string(swap->wanted.step),
                                 filled.error().message);
      swaps_.erase(id);
      trim(swap->wanted.kv);
    }
  }
  setup_.handlers.ready(std::move(ready));
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
  setup_.thread->post_urgent([this, swap = std::move(swap)] {
    swap->memory.clear();
    if (swap->ready) {
      trim(swap->wanted.kv);
    }
  });
}

void LayerSwapper::give_up() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, swap] : swaps_) {
    swap->aborted = true;
  }
}

bool LayerSwapper::prepares() {
  const std::lock_guard lock(mutex_);
  return std::any_of(swaps_.begin(), swaps_.end(),
                     [](const auto& one) { return !one.second->ready; });
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
  return Filled{std::move(swap->wanted), std::move(swap->memory)};
}

void LayerSwapper::give_back(MorphId id, ShardMemory memory, std::optional<int> kv_layer) {
  auto old = std::make_shared<ShardMemory>(std::move(memory));
  setup_.thread->post_urgent([this, id, kv_layer, old = std::move(old)] {
    old->clear();
    if (kv_layer) {
      setup_.kv->trim(*kv_layer);
    }
    setup_.handlers.done({.id = id, .pages_free = setup_.pool->free_pages()});
  });
}

}  // namespace protean

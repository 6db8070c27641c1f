#include "worker/kv_store.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "cost/memory.h"

namespace protean {

namespace {

cpu::KvElement element_of(KvPrecision precision) {
  switch (precision) {
    case KvPrecision::kF32:
      return cpu::KvElement::kF32;
    case KvPrecision::kBf16:
      return cpu::KvElement::kBf16;
    case KvPrecision::kInt8:
      return cpu::KvElement::kInt8;
  }
  check(false, "a KV precision is one of its names");
  return {};
}

Status check_blocks(std::int64_t blocks, std::int64_t block_bytes) {
  if (blocks <= 0 || block_bytes <= 0 || blocks > std::numeric_limits<BlockId>::max() ||
      blocks > std::numeric_limits<std::int64_t>::max() / block_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} KV blocks of {} bytes cannot be addressed: use a number that fits",
                      blocks, block_bytes);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<KvStore>> KvStore::create(const Shape& shape) {
  std::unique_ptr<KvStore> store(new KvStore);
  store->lay_out(shape);
  const std::int64_t block_bytes = store->block_bytes();
  if (const Status fits = check_blocks(shape.kv.blocks, block_bytes); !fits) {
    return fits.error();
  }
  Result<cpu::Region> region = cpu::Region::map(shape.kv.blocks * block_bytes);
  if (!region) {
    return region.error();
  }
  store->memory_ = std::move(*region);
  std::byte* next = store->memory_.data();
  for (cpu::KvLayer& layer : store->layers_) {
    if (layer.kv_heads > 0) {
      layer.base = next;
      next += shape.kv.blocks * layer.block_stride_bytes;
    }
  }
  store->blocks_ = shape.kv.blocks;
  return store;
}

Result<std::unique_ptr<KvStore>> KvStore::create(const Shape& shape, cpu::PagePool& pool) {
  std::unique_ptr<KvStore> store(new KvStore);
  store->lay_out(shape);
  if (const Status fits = check_blocks(shape.kv.blocks, store->block_bytes()); !fits) {
    return fits.error();
  }
  store->pool_ = &pool;
  store->arrays_.resize(store->layers_.size());
  for (std::size_t layer = 0; layer < store->layers_.size(); ++layer) {
    Array& array = store->arrays_[layer];
    array.stride_bytes = store->layers_[layer].block_stride_bytes;
    if (array.stride_bytes == 0) {
      continue;
    }
    if (const Status reserved = store->reserve(array); !reserved) {
      return reserved.error();
    }
  }
  if (const Status grown = store->grow(shape.kv.blocks); !grown) {
    return grown.error();
  }
  for (std::size_t layer = 0; layer < store->layers_.size(); ++layer) {
    store->layers_[layer].base = store->arrays_[layer].pages.data();
  }
  return store;
}

// Makes the layers without their addresses.
void KvStore::lay_out(const Shape& shape) {
  const AttentionSpec& attention = shape.spec.attention;
  block_tokens_ = shape.kv.block_tokens;
  for (const Holding::Layer& held : shape.holding.layers) {
    cpu::KvLayer layer{.element = element_of(shape.kv.precision),
                       .kv_heads = attention.kv_heads / shape.shards * held.attention.count,
                       .head_dim = attention.head_dim,
                       .block_tokens = block_tokens_};
    layer.block_stride_bytes = layer.kv_heads * layer.slot_bytes();
    check(layer.block_stride_bytes ==
              kv_layer_block_bytes(shape.spec, shape.kv) / shape.shards * held.attention.count,
          "cost counts the bytes that slots take");
    layers_.push_back(layer);
  }
  places_.resize(layers_.size());
}

Status KvStore::reserve(Array& array) {
  Result<cpu::PageRange> range = cpu::PageRange::reserve(*pool_, pool_->most_pages());
  if (!range) {
    return range.error();
  }
  const std::lock_guard lock(leaving_);
  array.pages = std::move(*range);
  return {};
}

std::int64_t KvStore::block_bytes() const {
  std::int64_t bytes = 0;
  for (const cpu::KvLayer& layer : layers_) {
    bytes += layer.block_stride_bytes;
  }
  return bytes;
}

std::int64_t KvStore::bytes() const {
  std::int64_t bytes = memory_.bytes();
  for (const Array& array : arrays_) {
    bytes += array.pages.bytes();
  }
  return bytes;
}

std::int64_t KvStore::pages_for(const Array& array, std::int64_t blocks) const {
  return ceil_div((blocks + array.others) * array.stride_bytes, pool_->page_bytes());
}

Status KvStore::grow(std::int64_t blocks, const cpu::MayGoOn& may_go_on) {
  if (pool_ == nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "this KV cache has its size for life: start with a memory budget to let it "
                      "grow");
  }
  if (Status fits = check_blocks(blocks, block_bytes()); !fits) {
    return fits;
  }
  check(blocks >= this->blocks(), "growing makes more blocks");
  std::int64_t wanted = 0;
  for (const Array& array : arrays_) {
    wanted += pages_for(array, blocks);
  }
  if (const std::int64_t most = pool_->pages(); wanted > most) {
    return make_error(ErrorCode::kExhausted,
                      "{} KV blocks need {} pages of {} where the device has {}: ask for fewer",
                      blocks, wanted, format_bytes(pool_->page_bytes()), most);
  }
  for (Array& array : arrays_) {
    Status attached = array.pages.attach(pages_for(array, blocks) - array.pages.pages(), may_go_on);
    if (!attached) {
      shrink();
      return attached;
    }
  }
  blocks_.store(blocks, std::memory_order_release);
  return {};
}

void KvStore::limit(std::int64_t blocks) {
  check(pool_ != nullptr && blocks > 0 && blocks <= this->blocks(), "shrinking leaves some blocks");
  blocks_.store(blocks, std::memory_order_release);
}

void KvStore::shrink() {
  for (Array& array : arrays_) {
    array.pages.detach(array.pages.pages() - pages_for(array, blocks()));
  }
}

Status KvStore::make_room(int layer, int kv_heads, std::int64_t places,
                          const cpu::MayGoOn& may_go_on) {
  check(pool_ != nullptr, "arrays on pages can change");
  Array& array = arrays_[static_cast<std::size_t>(layer)];
  if (array.pages.data() == nullptr) {
    if (Status reserved = reserve(array); !reserved) {
      return reserved;
    }
  }
  const std::int64_t bytes =
      places * kv_heads * layers_[static_cast<std::size_t>(layer)].slot_bytes();
  const std::int64_t pages = ceil_div(bytes, pool_->page_bytes());
  return array.pages.attach(std::max<std::int64_t>(0, pages - array.pages.pages()), may_go_on);
}

void KvStore::trim(int layer) {
  const std::lock_guard lock(changing_);
  Array& array = arrays_[static_cast<std::size_t>(layer)];
  array.pages.detach(array.pages.pages() - pages_for(array, blocks()));
}

Status KvStore::leave_addresses(int layer) {
  const std::lock_guard lock(leaving_);
  cpu::PageRange& pages = arrays_[static_cast<std::size_t>(layer)].pages;
  if (pages.data() == nullptr) {
    return {};
  }
  Result<cpu::PageRange> left = pages.leave_addresses();
  if (!left) {
    return left.error();
  }
  left_.push_back(std::move(*left));
  return {};
}

std::byte* KvStore::array(int layer) const {
  const std::lock_guard lock(leaving_);
  return arrays_[static_cast<std::size_t>(layer)].pages.data();
}

void KvStore::set_layer(int layer, int kv_heads, std::int64_t others, KvPlaces places) {
  const std::lock_guard lock(changing_);
  Array& array = arrays_[static_cast<std::size_t>(layer)];
  cpu::KvLayer& shape = layers_[static_cast<std::size_t>(layer)];
  shape.kv_heads = kv_heads;
  shape.block_stride_bytes = kv_heads * shape.slot_bytes();
  shape.base = kv_heads == 0 ? nullptr : array.pages.data();
  array.stride_bytes = shape.block_stride_bytes;
  array.others = others;
  set_places(layer, std::move(places));
}

// Layers whose blocks lie alike share their places, so that a step's tables are translated once.
void KvStore::set_places(int layer, KvPlaces places) {
  std::shared_ptr<const KvPlaces>& mine = places_[static_cast<std::size_t>(layer)];
  mine = nullptr;
  if (places.tables.empty()) {
    return;
  }
  const auto same = std::find_if(places_.begin(), places_.end(), [&](const auto& other) {
    return other != nullptr && *other == places;
  });
  mine = same != places_.end() ? *same : std::make_shared<const KvPlaces>(std::move(places));
}

void KvStore::join(int homes) {
  const std::lock_guard lock(changing_);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (places_[layer] != nullptr) {
      set_places(static_cast<int>(layer), for_homes(*places_[layer], homes));
    }
  }
}

void KvStore::unify(const HomeBlocks& homes) {
  const std::lock_guard lock(changing_);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    check(arrays_[layer].stride_bytes == 0 || blocks() + arrays_[layer].others == homes.total(),
          "every array has the blocks of all homes");
    if (places_[layer] != nullptr) {
      set_places(static_cast<int>(layer), unified(*places_[layer], homes));
    }
    arrays_[layer].others = 0;
  }
  blocks_.store(homes.total(), std::memory_order_release);
}

void KvStore::divide(const HomeBlocks& homes, int own) {
  const std::lock_guard lock(changing_);
  check(blocks() == homes.total(), "homes have all blocks");
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (arrays_[layer].stride_bytes != 0) {
      const KvPlaces all = places_[layer] == nullptr ? KvPlaces() : *places_[layer];
      set_places(static_cast<int>(layer), divided(all, homes));
    }
    arrays_[layer].others = homes.total() - homes.of(own);
  }
  blocks_.store(homes.of(own), std::memory_order_release);
}

std::vector<SharedHeads> KvStore::own_heads() const {
  std::vector<SharedHeads> heads;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (layers_[layer].kv_heads > 0) {
      heads.push_back({.layer = static_cast<int>(layer), .count = layers_[layer].kv_heads});
    }
  }
  return heads;
}

void KvStore::copy(const KvLayout& source, const SharedHeads& heads, const BlockMove& move) const {
  check(move.from >= 0 && move.from < source.blocks && move.to >= 0 && move.to < blocks(),
        "blocks that are copied exist");
  const auto layer = static_cast<std::size_t>(heads.layer);
  const cpu::KvLayer& here = layers_[layer];
  check(heads.from + heads.count <= source.layers[layer].kv_heads &&
            heads.to + heads.count <= here.kv_heads,
        "both devices have the heads");
  const std::int64_t slot_bytes = here.slot_bytes();
  const KvPlaces* const moved = places(heads.layer);
  const std::int64_t place = moved == nullptr ? move.to : moved->place(0, move.to);
  std::byte* const to = here.base + place * here.block_stride_bytes + heads.to * slot_bytes;
  const std::byte* const from = source.block(heads.layer, move.from) + heads.from * slot_bytes;
  check(from != to, "a block moves to another");
  std::memcpy(to, from, static_cast<std::size_t>(heads.count * slot_bytes));
}

}  // namespace protean

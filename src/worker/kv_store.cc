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
  const std::int64_t block_bytes = store->lay_out(shape);
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
  const std::int64_t block_bytes = store->lay_out(shape);
  if (const Status fits = check_blocks(shape.kv.blocks, block_bytes); !fits) {
    return fits.error();
  }
  store->page_bytes_ = pool.page_bytes();
  for (cpu::KvLayer& layer : store->layers_) {
    if (layer.kv_heads == 0) {
      continue;
    }
    Result<cpu::PageRange> range = cpu::PageRange::reserve(pool, pool.pages());
    if (!range) {
      return range.error();
    }
    layer.base = range->data();
    store->arrays_.push_back({std::move(*range), layer.block_stride_bytes});
  }
  if (const Status grown = store->grow(shape.kv.blocks); !grown) {
    return grown.error();
  }
  return store;
}

// Makes the layers without their addresses, and returns the bytes of a block in all of them.
std::int64_t KvStore::lay_out(const Shape& shape) {
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
    block_bytes_ += layer.block_stride_bytes;
    layers_.push_back(layer);
  }
  return block_bytes_;
}

std::int64_t KvStore::bytes() const {
  std::int64_t bytes = memory_.bytes();
  for (const Array& array : arrays_) {
    bytes += array.pages.bytes();
  }
  return bytes;
}

std::int64_t KvStore::pages_for(const Array& array, std::int64_t blocks) const {
  return ceil_div(blocks * array.stride_bytes, page_bytes_);
}

Status KvStore::grow(std::int64_t blocks, const cpu::MayGoOn& may_go_on) {
  if (page_bytes_ == 0) {
    return make_error(ErrorCode::kUnsupported,
                      "this KV cache has its size for life: start with a memory budget to let it "
                      "grow");
  }
  if (Status fits = check_blocks(blocks, block_bytes_); !fits) {
    return fits;
  }
  check(blocks >= this->blocks(), "growing makes more blocks");
  std::int64_t wanted = 0;
  std::int64_t most = 0;
  for (const Array& array : arrays_) {
    wanted += pages_for(array, blocks);
    most = array.pages.most_pages();  // of the pool, for every array
  }
  if (wanted > most) {
    return make_error(ErrorCode::kExhausted,
                      "{} KV blocks need {} pages of {} where the device has {}: ask for fewer",
                      blocks, wanted, format_bytes(page_bytes_), most);
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
  check(page_bytes_ > 0 && blocks > 0 && blocks <= this->blocks(), "shrinking leaves some blocks");
  blocks_.store(blocks, std::memory_order_release);
}

void KvStore::shrink() {
  for (Array& array : arrays_) {
    array.pages.detach(array.pages.pages() - pages_for(array, blocks()));
  }
}

void KvStore::copy(const KvStore& source, const BlockMove& move, std::int64_t part,
                   std::int64_t parts) const {
  check(move.from >= 0 && move.from < source.blocks() && move.to >= 0 && move.to < blocks() &&
            (&source != this || move.from != move.to),
        "a block moves to another");
  check(source.block_bytes_ == block_bytes_ && source.layers_.size() == layers_.size(),
        "blocks are copied between equal arrays");
  // A part is a range of the bytes of the block's slots, one layer after another.
  std::int64_t begin = block_bytes_ * part / parts;
  const std::int64_t end = block_bytes_ * (part + 1) / parts;
  std::int64_t first = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const std::int64_t stride = layers_[layer].block_stride_bytes;
    const std::int64_t last = std::min(end, first + stride);
    if (begin < last) {
      const std::int64_t within = begin - first;
      std::memcpy(layers_[layer].base + within + move.to * stride,
                  source.layers_[layer].base + within + move.from * stride,
                  static_cast<std::size_t>(last - begin));
      begin = last;
    }
    first += stride;
  }
}

}  // namespace protean

#include "worker/kv_store.h"

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

Result<std::unique_ptr<KvStore>> KvStore::create(const ModelSpec& spec, const KvForm& form) {
  const std::int64_t block_bytes = kv_block_bytes(spec, form);
  if (const Status fits = check_blocks(form.blocks, block_bytes); !fits) {
    return fits.error();
  }
  Result<cpu::Region> region = cpu::Region::map(form.blocks * block_bytes);
  if (!region) {
    return region.error();
  }
  std::unique_ptr<KvStore> store(new KvStore);
  store->memory_ = std::move(*region);
  store->lay_out(spec, form, store->memory_.data());
  store->blocks_ = form.blocks;
  return store;
}

Result<std::unique_ptr<KvStore>> KvStore::create(const ModelSpec& spec, const KvForm& form,
                                                 cpu::PagePool& pool) {
  if (const Status fits = check_blocks(form.blocks, kv_block_bytes(spec, form)); !fits) {
    return fits.error();
  }
  Result<cpu::PageRange> range = cpu::PageRange::reserve(pool, pool.pages());
  if (!range) {
    return range.error();
  }
  std::unique_ptr<KvStore> store(new KvStore);
  store->range_ = std::move(*range);
  store->page_bytes_ = pool.page_bytes();
  store->lay_out(spec, form, store->range_.data());
  if (const Status grown = store->grow(form.blocks); !grown) {
    return grown.error();
  }
  return store;
}

void KvStore::lay_out(const ModelSpec& spec, const KvForm& form, std::byte* base) {
  const std::int64_t block_bytes = kv_block_bytes(spec, form);
  for (int layer = 0; layer < spec.layers; ++layer) {
    layers_.push_back({.base = base + layer * (block_bytes / spec.layers),
                       .block_stride_bytes = block_bytes,
                       .element = element_of(form.precision),
                       .kv_heads = spec.attention.kv_heads,
                       .head_dim = spec.attention.head_dim,
                       .block_tokens = form.block_tokens});
  }
  const cpu::KvLayer& first = layers_.front();
  check(spec.layers * first.kv_heads * first.slot_bytes() == block_bytes,
        "cost counts the bytes that slots take");
}

std::int64_t KvStore::pages_for(std::int64_t blocks) const {
  return ceil_div(blocks * block_bytes(), page_bytes_);
}

Status KvStore::grow(std::int64_t blocks, const cpu::MayGoOn& may_go_on) {
  if (page_bytes_ == 0) {
    return make_error(ErrorCode::kUnsupported,
                      "this KV cache has its size for life: start with a memory budget to let it "
                      "grow");
  }
  if (Status fits = check_blocks(blocks, block_bytes()); !fits) {
    return fits;
  }
  check(blocks >= this->blocks(), "growing makes more blocks");
  const std::int64_t wanted = pages_for(blocks);
  if (wanted > range_.most_pages()) {
    return make_error(ErrorCode::kExhausted,
                      "{} KV blocks need {} pages of {} where the device has {}: ask for fewer",
                      blocks, wanted, format_bytes(page_bytes_), range_.most_pages());
  }
  if (Status attached = range_.attach(wanted - range_.pages(), may_go_on); !attached) {
    return attached;
  }
  blocks_.store(blocks, std::memory_order_release);
  return {};
}

void KvStore::limit(std::int64_t blocks) {
  check(page_bytes_ > 0 && blocks > 0 && blocks <= this->blocks(), "shrinking leaves some blocks");
  blocks_.store(blocks, std::memory_order_release);
}

void KvStore::shrink() {
  range_.detach(range_.pages() - pages_for(blocks()));
}

void KvStore::copy(const KvStore& source, const BlockMove& move, std::int64_t part,
                   std::int64_t parts) const {
  check(move.from >= 0 && move.from < source.blocks() && move.to >= 0 && move.to < blocks() &&
            (&source != this || move.from != move.to),
        "a block moves to another");
  check(source.block_bytes() == block_bytes(), "blocks are copied to blocks of their size");
  const std::int64_t begin = block_bytes() * part / parts;
  const std::int64_t end = block_bytes() * (part + 1) / parts;
  std::memcpy(layers_.front().base + begin + move.to * block_bytes(),
              source.layers_.front().base + begin + move.from * block_bytes(),
              static_cast<std::size_t>(end - begin));
}

}  // namespace protean

#include "worker/kv_store.h"

#include <limits>
#include <utility>

#include "base/check.h"
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

}  // namespace

Result<KvStore> KvStore::create(const ModelSpec& spec, const KvForm& form) {
  const std::int64_t block_bytes = kv_block_bytes(spec, form);
  if (form.blocks <= 0 || block_bytes <= 0 || form.blocks > std::numeric_limits<BlockId>::max() ||
      form.blocks > std::numeric_limits<std::int64_t>::max() / block_bytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} KV blocks of {} bytes cannot be addressed: ask for fewer", form.blocks,
                      block_bytes);
  }
  Result<cpu::Region> region = cpu::Region::map(form.blocks * block_bytes);
  if (!region) {
    return region.error();
  }
  KvStore store;
  store.memory_ = std::move(*region);
  store.blocks_ = form.blocks;
  for (int layer = 0; layer < spec.layers; ++layer) {
    store.layers_.push_back({.base = store.memory_.data() + layer * (block_bytes / spec.layers),
                             .block_stride_bytes = block_bytes,
                             .element = element_of(form.precision),
                             .kv_heads = spec.attention.kv_heads,
                             .head_dim = spec.attention.head_dim,
                             .block_tokens = form.block_tokens});
  }
  const cpu::KvLayer& first = store.layers_.front();
  check(spec.layers * first.kv_heads * first.slot_bytes() == block_bytes,
        "cost counts the bytes that slots take");
  return store;
}

}  // namespace protean

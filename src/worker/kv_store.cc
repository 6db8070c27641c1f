#include "worker/kv_store.h"

#include <limits>
#include <utility>

#include "cost/memory.h"

namespace protean {

Result<KvStore> KvStore::create(const ModelSpec& spec, const KvForm& form) {
  if (form.precision != Precision::kBf16 && form.precision != Precision::kF32) {
    return make_error(ErrorCode::kUnsupported,
                      "KV at {} is not supported on this device: use bf16 or f32",
                      to_string(form.precision));
  }
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
    store.layers_.push_back(
        {.base = store.memory_.data() + layer * (block_bytes / spec.layers),
         .block_stride_bytes = block_bytes,
         .element = form.precision == Precision::kF32 ? cpu::Element::kF32 : cpu::Element::kBf16,
         .kv_heads = spec.attention.kv_heads,
         .head_dim = spec.attention.head_dim,
         .block_tokens = form.block_tokens});
  }
  return store;
}

}  // namespace protean

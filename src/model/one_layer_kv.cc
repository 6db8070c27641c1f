#include "model/one_layer_kv.h"

#include <numeric>
#include <utility>

namespace protean {
namespace {

constexpr int kBlockTokens = 16;

}  // namespace

Result<OneLayerKv> OneLayerKv::create(const ModelSpec& spec, std::size_t tokens,
                                      cpu::KvElement element) {
  OneLayerKv kv;
  kv.blocks.resize((tokens + kBlockTokens - 1) / kBlockTokens);
  std::iota(kv.blocks.begin(), kv.blocks.end(), BlockId{0});
  kv.layer = {.element = element,
              .kv_heads = spec.attention.kv_heads,
              .head_dim = spec.attention.head_dim,
              .block_tokens = kBlockTokens};
  kv.layer.block_stride_bytes = kv.layer.kv_heads * kv.layer.slot_bytes();
  Result<cpu::Region> region =
      cpu::Region::map(std::ssize(kv.blocks) * kv.layer.block_stride_bytes);
  if (!region) {
    return region.error();
  }
  kv.memory = std::move(*region);
  kv.layer.base = kv.memory.data();
  return kv;
}

}  // namespace protean

#include "cost/pages.h"

#include <algorithm>

#include "base/units.h"
#include "cost/memory.h"
#include "cost/shards.h"

namespace protean {
namespace {

constexpr std::int64_t kLargestPage = 2 * kMiB;
constexpr std::int64_t kSmallestPage = 4 * kKiB;
constexpr std::int64_t kPagesOfAHalf = 8;  // at least, at bf16
// Each matrix and vector of a component begins on a line of 64 bytes.
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kTensorsOfAComponent = 12;

}  // namespace

std::int64_t page_bytes_for(const ModelSpec& spec) {
  const std::int64_t smaller =
      std::min(component_bytes(spec, Component::kAttention, Precision::kBf16),
               component_bytes(spec, Component::kMlp, Precision::kBf16));
  std::int64_t page_bytes = kLargestPage;
  while (page_bytes > kSmallestPage && page_bytes * kPagesOfAHalf > smaller) {
    page_bytes /= 2;
  }
  return page_bytes;
}

std::int64_t component_pages(const ModelSpec& spec, Component component, Precision precision,
                             std::int64_t page_bytes, int shards) {
  shards = shards_of(component, shards);
  const std::int64_t shard_bytes = component_bytes(shard_spec(spec, shards), component, precision);
  return shards * ceil_div(shard_bytes + kTensorsOfAComponent * kLine, page_bytes);
}

std::int64_t kv_pages(const ModelSpec& spec, const KvForm& kv, std::int64_t page_bytes) {
  return ceil_div(kv.blocks * kv_block_bytes(spec, kv), page_bytes);
}

std::int64_t weight_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes) {
  std::int64_t pages = 0;
  for (const LayerPrecision& layer : form.layer_precision) {
    for (const Component half : kLayerHalves) {
      pages += component_pages(spec, half, layer.of(half), page_bytes, form.largest_tp_degree);
    }
  }
  return pages / form.tp_degree +
         component_pages(spec, Component::kEmbeddings, form.embeddings, page_bytes);
}

std::int64_t form_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes) {
  return weight_pages(spec, form, page_bytes) + kv_pages(spec, form.kv, page_bytes);
}

std::vector<DevicePages> pages_by_device(const ModelSpec& spec, const Form& form,
                                         std::int64_t page_bytes) {
  std::vector<DevicePages> devices;
  for (const Stage& stage : form.stages) {
    for (const DeviceId device : stage.devices) {
      DevicePages pages{.device = device, .first_layer = stage.first_layer};
      for (int i = stage.first_layer; i < stage.first_layer + stage.layer_count; ++i) {
        const auto of = [&](Component half) {
          return component_pages(spec, half, precision_of(form, i, half), page_bytes,
                                 form.largest_tp_degree) /
                 form.tp_degree;
        };
        pages.layers.emplace_back(of(Component::kAttention), of(Component::kMlp));
      }
      devices.push_back(std::move(pages));
    }
  }
  // Embedding matrix, LM head and KV cache of one device; form_pages() knows no other forms yet.
  if (!devices.empty()) {
    devices.front().embeddings =
        component_pages(spec, Component::kEmbeddings, form.embeddings, page_bytes);
    devices.front().kv = kv_pages(spec, form.kv, page_bytes);
  }
  return devices;
}

std::int64_t kv_blocks_in(const ModelSpec& spec, const KvForm& kv, std::int64_t pages,
                          std::int64_t page_bytes) {
  return pages * page_bytes / kv_block_bytes(spec, kv);
}

}  // namespace protean

#include "cost/pages.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "cost/memory.h"
#include "cost/shards.h"

namespace protean {
namespace {

constexpr std::int64_t kLargestPage = 2 * kMiB;
constexpr std::int64_t kSmallestPage = 4 * kKiB;
constexpr std::int64_t kPagesOfAHalf = 8;   // at least, at bf16
constexpr std::int64_t kMostPages = 32768;  // bound of all devices' pages

std::int64_t shard_pages(const ModelSpec& spec, Component component, Precision precision,
                         std::int64_t page_bytes, int shards) {
  return ceil_div(matrices_bytes(shard_spec(spec, shards), component, precision), page_bytes);
}

// Bytes of a block in the array of a layer, of which the device holds `run`.
std::int64_t kv_stride(const ModelSpec& spec, const Form& form, const ShardRun& run) {
  return kv_layer_block_bytes(spec, form.kv) / form.shards * run.count;
}

const Holding& holding_of(const Form& form, int device) {
  return form.group[static_cast<std::size_t>(device)];
}

std::int64_t attention_copies(const Form& form, std::size_t layer) {
  std::int64_t shards = 0;
  for (const Holding& holding : form.group) {
    shards += holding.layers[layer].attention.count;
  }
  return ceil_div(shards, std::int64_t{form.shards});
}

template <class PagesOn>
std::int64_t most_on_a_device(const Form& form, const PagesOn& pages_on) {
  std::int64_t most = 0;
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    most = std::max(most, pages_on(device));
  }
  return most;
}

// Returns the largest number of blocks whose arrays fit the pages of a device; -1 if it has none.
std::int64_t blocks_on(const ModelSpec& spec, const Form& form, int device, std::int64_t pages,
                       std::int64_t page_bytes) {
  std::int64_t arrays = 0;
  std::int64_t widest = 0;
  std::int64_t stride = 0;  // sum of the strides of all arrays
  bool one_copy = true;
  const std::vector<Holding::Layer>& layers = holding_of(form, device).layers;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const ShardRun& run = layers[layer].attention;
    const std::int64_t one = kv_stride(spec, form, run);
    arrays += run.empty() ? 0 : 1;
    one_copy = one_copy && (run.empty() || attention_copies(form, layer) == 1);
    widest = std::max(widest, one);
    stride += one;
  }
  if (arrays == 0) {
    return -1;
  }
  Form more = form;
  more.kv.blocks = std::max<std::int64_t>(pages, 0) / arrays * page_bytes / widest;
  if (one_copy && stride == arrays * widest) {
    return more.kv.blocks;
  }
  // Arrays of fewer shards, or of a copy's part of the blocks, leave room for more.
  std::int64_t step = more.kv.blocks + 1;
  while (step > 0) {
    more.kv.blocks += step;
    if (kv_pages_on(spec, more, device, page_bytes) > pages) {
      more.kv.blocks -= step;
      step /= 2;
    }
  }
  return more.kv.blocks;
}

}  // namespace

std::int64_t page_bytes_for(const ModelSpec& spec, int shards, std::int64_t mapped_bytes) {
  const ModelSpec shard = shard_spec(spec, shards);
  const std::int64_t smaller =
      std::min(component_bytes(shard, Component::kAttention, Precision::kBf16),
               component_bytes(shard, Component::kMlp, Precision::kBf16));
  std::int64_t page_bytes = kLargestPage;
  while (page_bytes > kSmallestPage && page_bytes * kPagesOfAHalf > smaller) {
    page_bytes /= 2;
  }
  while (page_bytes * kMostPages < mapped_bytes) {
    page_bytes *= 2;
  }
  return page_bytes;
}

std::int64_t component_pages(const ModelSpec& spec, Component component, Precision precision,
                             std::int64_t page_bytes, int shards) {
  return shards * shard_pages(spec, component, precision, page_bytes, shards);
}

std::int64_t kv_pages(const ModelSpec& spec, const KvForm& kv, std::int64_t page_bytes) {
  return spec.layers * ceil_div(kv.blocks * kv_layer_block_bytes(spec, kv), page_bytes);
}

std::int64_t weight_pages_on(const ModelSpec& spec, const Form& form, int device,
                             std::int64_t page_bytes) {
  const Holding& holding = holding_of(form, device);
  std::int64_t pages =
      holding.lacking_pages + holding.embeddings.count * shard_pages(spec, Component::kEmbeddings,
                                                                     form.embeddings, page_bytes,
                                                                     form.shards);
  for (std::size_t layer = 0; layer < holding.layers.size(); ++layer) {
    for (const Component half : kLayerHalves) {
      const ShardRun run = shards_kept(form, half, holding.layers[layer].of(half));
      pages += run.empty()
                   ? 0
                   : run.count * shard_pages(spec, half, form.layer_precision[layer].of(half),
                                             page_bytes, form.shards);
    }
  }
  return pages;
}

std::int64_t kv_pages_on(const ModelSpec& spec, const Form& form, int device,
                         std::int64_t page_bytes) {
  std::int64_t pages = 0;
  const std::int64_t home_blocks = holding_of(form, device).home_blocks;
  const std::vector<Holding::Layer>& layers = holding_of(form, device).layers;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const ShardRun& run = layers[layer].attention;
    if (!run.empty()) {
      const std::int64_t copies = attention_copies(form, layer);
      const std::int64_t places =
          copies > 1 && home_blocks > 0 ? home_blocks : ceil_div(form.kv.blocks, copies);
      pages += ceil_div(places * kv_stride(spec, form, run), page_bytes);
    }
  }
  return pages;
}

std::int64_t pages_on(const ModelSpec& spec, const Form& form, int device,
                      std::int64_t page_bytes) {
  return weight_pages_on(spec, form, device, page_bytes) +
         kv_pages_on(spec, form, device, page_bytes);
}

std::int64_t weight_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes) {
  return most_on_a_device(
      form, [&](int device) { return weight_pages_on(spec, form, device, page_bytes); });
}

std::int64_t form_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes) {
  return most_on_a_device(form,
                          [&](int device) { return pages_on(spec, form, device, page_bytes); });
}

std::vector<DevicePages> pages_by_device(const ModelSpec& spec, const Form& form,
                                         std::int64_t page_bytes) {
  std::vector<DevicePages> devices;
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    const Holding& holding = holding_of(form, device);
    const auto pages_of = [&](int layer, Component component) {
      const int shards = shards_kept(form, component, holding.of(layer, component)).count;
      return shards == 0
                 ? 0
                 : shards * shard_pages(spec, component, precision_of(form, layer, component),
                                        page_bytes, form.shards);
    };
    DevicePages pages{.device = holding.device,
                      .embeddings = pages_of(0, Component::kEmbeddings),
                      .kv = kv_pages_on(spec, form, device, page_bytes),
                      .lacking = holding.lacking_pages};
    for (int layer = 0; layer < static_cast<int>(holding.layers.size()); ++layer) {
      pages.layers.emplace_back(pages_of(layer, Component::kAttention),
                                pages_of(layer, Component::kMlp));
    }
    devices.push_back(std::move(pages));
  }
  return devices;
}

std::int64_t kv_blocks_that_fit(const ModelSpec& spec, const Form& form, std::int64_t pages,
                                std::int64_t page_bytes) {
  std::int64_t least = -1;
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    const std::int64_t left = pages - weight_pages_on(spec, form, device, page_bytes);
    const std::int64_t blocks = left < 0 ? 0 : blocks_on(spec, form, device, left, page_bytes);
    least = blocks < 0 ? least : least < 0 ? blocks : std::min(least, blocks);
  }
  return std::max<std::int64_t>(least, 0);
}

}  // namespace protean

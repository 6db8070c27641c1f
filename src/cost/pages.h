#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "contract/form.h"
#include "contract/model_spec.h"

namespace protean {

// A device's pages. Every component and the KV cache borrow whole pages of their own. Activation
// buffers are not part of the budget.
struct PageBudget {
  std::int64_t page_bytes = 0;
  std::int64_t pages = 0;
  // Pages that stay free, to fill the next variant of a half while the old one serves.
  std::int64_t reserve = 0;
};

// Returns 2 MiB, or for small models a smaller power of two, so that the last page of a half wastes
// little.
std::int64_t page_bytes_for(const ModelSpec& spec);

// Pages of a component: component_bytes() and the alignment of its matrices and vectors to 64-byte
// lines. Each of its shards_of() shards (cost/shards.h) has whole pages of its own, so that a
// device can give up some shards and their pages.
std::int64_t component_pages(const ModelSpec& spec, Component component, Precision precision,
                             std::int64_t page_bytes, int shards = 1);
std::int64_t kv_pages(const ModelSpec& spec, const KvForm& kv, std::int64_t page_bytes);

// Pages of the weights that one device holds. form_pages() adds its KV cache.
std::int64_t weight_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes);
std::int64_t form_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes);

// What the pages of one device hold.
struct DevicePages {
  DeviceId device;
  int first_layer = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> layers;  // attention and MLP of each layer
  std::int64_t embeddings = 0;
  std::int64_t kv = 0;
};
// Returns the pages of each device of a form. Together they are form_pages().
std::vector<DevicePages> pages_by_device(const ModelSpec& spec, const Form& form,
                                         std::int64_t page_bytes);

// Returns the number of blocks that fit into `pages` pages.
std::int64_t kv_blocks_in(const ModelSpec& spec, const KvForm& kv, std::int64_t pages,
                          std::int64_t page_bytes);

}  // namespace protean

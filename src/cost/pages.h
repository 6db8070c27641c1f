#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "contract/form.h"
#include "contract/model_spec.h"

namespace protean {

// The pages of a device, or of each device of a group: of the one with most, if they have different
// numbers (Holding::lacking_pages). Every shard of a component and the KV cache
// of every layer borrow whole pages of their own. Activation buffers are not part of the budget.
struct PageBudget {
  std::int64_t page_bytes = 0;
  std::int64_t pages = 0;
  // Pages that stay free in every form. None are needed: KV lends a swap its pages (plan_morph).
  std::int64_t reserve = 0;
};

// Returns 2 MiB, or for small models a smaller power of two, so that the last page of a shard of a
// half wastes little. If `mapped_bytes`, the memory of all devices whose pages one process maps, is
// large, it is more: a page is at least 1/32,768 of it, because the kernel allows a process some
// 65,530 mappings, of which each page may need one.
std::int64_t page_bytes_for(const ModelSpec& spec, int shards = 1, std::int64_t mapped_bytes = 0);

// Pages of a component: of the matrices of each of its `shards`, so that a device can give up some
// shards and their pages. Norms and biases, which are too small for pages of their own, lie in what
// is left of a page or behind it in memory of the system.
std::int64_t component_pages(const ModelSpec& spec, Component component, Precision precision,
                             std::int64_t page_bytes, int shards = 1);

// Pages of the KV cache of a device that holds the whole model: of the array of each layer.
std::int64_t kv_pages(const ModelSpec& spec, const KvForm& kv, std::int64_t page_bytes);

// Pages of weights, of the KV cache, and of both, on a device: `device` is an index into
// form.group. Pages that a device lacks count as pages of weights.
std::int64_t weight_pages_on(const ModelSpec& spec, const Form& form, int device,
                             std::int64_t page_bytes);
std::int64_t kv_pages_on(const ModelSpec& spec, const Form& form, int device,
                         std::int64_t page_bytes);
std::int64_t pages_on(const ModelSpec& spec, const Form& form, int device, std::int64_t page_bytes);

// Returns the pages of the device that has most: of weights, and of all that a form needs.
std::int64_t weight_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes);
std::int64_t form_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes);

// What the pages of one device hold. Zero pages: the device does not hold it.
struct DevicePages {
  DeviceId device;
  std::vector<std::pair<std::int64_t, std::int64_t>> layers;  // attention and MLP of each layer
  std::int64_t embeddings = 0;
  std::int64_t kv = 0;
  std::int64_t lacking = 0;  // see Holding
};
// Returns the pages of each device of a form, in the order of form.group.
std::vector<DevicePages> pages_by_device(const ModelSpec& spec, const Form& form,
                                         std::int64_t page_bytes);

// Returns the number of blocks that fit on every device next to its weights, if each has `pages`
// pages but for those that it lacks. 0 if the weights do not fit.
std::int64_t kv_blocks_that_fit(const ModelSpec& spec, const Form& form, std::int64_t pages,
                                std::int64_t page_bytes);

}  // namespace protean

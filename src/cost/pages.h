#pragma once

#include <cstdint>

#include "contract/form.h"
#include "contract/model_spec.h"

namespace protean {

// What a device's memory is to a form: pages that halves of layers, the embeddings around the
// layers and the KV cache borrow, each in whole pages of its own. Activations lie beside them for
// good.
struct PageBudget {
  std::int64_t page_bytes = 0;
  std::int64_t pages = 0;
  std::int64_t reserve =
      0;  // of them, stay free: a half's variant is filled there while the old one serves
};

// 2 MiB, or for small models a power of two that wastes little of a half's last page.
std::int64_t page_bytes_for(const ModelSpec& spec);

// From the start of a component to the end of its last matrix or vector, each begun on a 64-byte
// line: component_bytes() and what alignment adds. Of shards_of() shards (cost/shards.h), each on
// whole pages, so that a device can give up some of them and the pages below.
std::int64_t component_pages(const ModelSpec& spec, Component component, Precision precision,
                             std::int64_t page_bytes, int shards = 1);
std::int64_t kv_pages(const ModelSpec& spec, const KvForm& kv, std::int64_t page_bytes);

// Of the embeddings and all shards of halves that one device holds; and of them and its KV cache.
std::int64_t weight_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes);
std::int64_t form_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes);

// Blocks that fit so many pages.
std::int64_t kv_blocks_in(const ModelSpec& spec, const KvForm& kv, std::int64_t pages,
                          std::int64_t page_bytes);

}  // namespace protean

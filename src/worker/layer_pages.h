#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/morph.h"
#include "device/cpu/pages.h"
#include "model/checkpoint.h"
#include "model/weights.h"

namespace protean {

// Fills memory of component_size() with packed weights, of a whole component or of one shard,
// asking `pace` between pieces of a millisecond or less. Called on a thread beside steps, by one at
// a time. What comes back is for people: what was amiss though the weights are right, mostly
// nothing.
using ReadComponent = std::function<Result<std::string>(
    const ComponentVariant& which, std::span<std::byte> memory, const Pace& pace)>;

struct FilledPages {
  cpu::PageRange pages;
  std::string remark;  // of the reader
};

// A component of a model, and the shards that halves of its layers are in.
struct ShardedSwap {
  const ModelSpec& spec;
  SwapComponent component;
  int shards = 1;
};

// Pages of their own, filled: each shard of the component begins on a page. A failure has given all
// pages back.
Result<FilledPages> fill_pages(cpu::PagePool& pool, const ShardedSwap& what,
                               const ReadComponent& read, const cpu::MayGoOn& may_go_on = {});

// The pages below each component of a model.
class LayerPages {
 public:
  LayerPages() = default;
  explicit LayerPages(int layers) : halves_(static_cast<std::size_t>(layers)) {}

  // Points the component's weights, all shards of them, to these pages; the old ones are what
  // `pages` then holds.
  void swap(ModelWeights& weights, const SwapComponent& component, cpu::PageRange& pages);

  std::int64_t bytes() const;

 private:
  std::vector<std::array<cpu::PageRange, kLayerHalves.size()>> halves_;
  cpu::PageRange embeddings_;
};

}  // namespace protean

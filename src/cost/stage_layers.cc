#include "cost/stage_layers.h"

#include <algorithm>
#include <cstddef>

#include "base/units.h"
#include "cost/memory.h"
#include "cost/pages.h"

namespace protean {
namespace {

// Divides layers among stages, of which each must hold a number of KV blocks for its layers.
class StageFilling {
 public:
  StageFilling(const ModelSpec& spec, const Form& form, int tensor, const StageRoom& room)
      : room_(room),
        layers_(static_cast<int>(form.layer_precision.size())),
        stride_(kv_layer_block_bytes(spec, form.kv) / form.shards * (form.shards / tensor)) {
    const auto pages_of = [&](Component component, Precision precision) {
      const ShardRun run = shards_kept(form, component, {0, form.shards / tensor});
      return component_pages(spec, component, precision, room.page_bytes, form.shards) /
             form.shards * run.count;
    };
    embeddings_ = pages_of(Component::kEmbeddings, form.embeddings);
    for (const LayerPrecision& layer : form.layer_precision) {
      weights_.push_back(pages_of(Component::kAttention, layer.attention) +
                         pages_of(Component::kMlp, layer.mlp));
    }
  }

  int layers() const { return layers_; }
  int stages() const { return static_cast<int>(room_.pages.size()); }

  // Returns the layers of each stage, none of which has more than `most_layers`; empty if they have
  // no room.
  std::vector<int> fill(std::int64_t blocks, int most_layers) const {
    // The most layers of a stage that begins with a layer, so that the later stages hold the rest;
    // 0: there is no such number.
    std::vector<std::vector<int>> counts(room_.pages.size(),
                                         std::vector<int>(weights_.size() + 1, 0));
    for (int stage = stages() - 1; stage >= 0; --stage) {
      for (int first = 0; first < layers_; ++first) {
        std::int64_t left = room_of(stage);
        for (int end = first + 1; end <= std::min(layers_, first + most_layers); ++end) {
          left -= pages_of_layer(end - 1, blocks);
          if (left < 0) {
            break;
          }
          const bool rest_fits =
              stage + 1 == stages() ? end == layers_ : at(counts, stage + 1, end) > 0;
          at(counts, stage, first) = rest_fits ? end - first : at(counts, stage, first);
        }
      }
    }
    std::vector<int> filled;
    int first = 0;
    for (int stage = 0; stage < stages(); ++stage) {
      const int count = at(counts, stage, first);
      if (count == 0) {
        return {};
      }
      filled.push_back(count);
      first += count;
    }
    return filled;
  }

  bool fits(const std::vector<int>& stage_layers, std::int64_t blocks) const {
    int next = 0;
    for (int stage = 0; stage < stages(); ++stage) {
      std::int64_t left = room_of(stage);
      for (int i = 0; i < stage_layers[static_cast<std::size_t>(stage)]; ++i, ++next) {
        left -= pages_of_layer(next, blocks);
      }
      if (left < 0) {
        return false;
      }
    }
    return true;
  }

 private:
  static int& at(std::vector<std::vector<int>>& counts, int stage, int first) {
    return counts[static_cast<std::size_t>(stage)][static_cast<std::size_t>(first)];
  }
  // Returns the pages of a stage for layers: the first and the last one hold the embeddings.
  std::int64_t room_of(int stage) const {
    const bool outer = stage == 0 || stage + 1 == stages();
    return room_.pages[static_cast<std::size_t>(stage)] - (outer ? embeddings_ : 0);
  }
  std::int64_t pages_of_layer(int layer, std::int64_t blocks) const {
    return weights_[static_cast<std::size_t>(layer)] + ceil_div(blocks * stride_, room_.page_bytes);
  }

  const StageRoom& room_;
  const int layers_;
  const std::int64_t stride_;  // bytes of a block in the array of a layer
  std::int64_t embeddings_ = 0;
  std::vector<std::int64_t> weights_;  // pages on each device, by layer
};

}  // namespace

std::vector<int> stage_layers_for(const ModelSpec& spec, const Form& form, int tensor,
                                  const StageRoom& room) {
  const StageFilling filling(spec, form, tensor, room);
  const int layers = filling.layers();
  if (filling.fill(1, layers).empty()) {
    return {};
  }
  std::int64_t blocks = 1;
  std::int64_t beyond = std::max<std::int64_t>(room.most_blocks, 1) + 1;
  while (blocks + 1 < beyond) {
    const std::int64_t middle = blocks + (beyond - blocks) / 2;
    if (filling.fill(middle, layers).empty()) {
      beyond = middle;
    } else {
      blocks = middle;
    }
  }
  std::vector<int> even = even_division(layers, tensor, filling.stages()).stage_layers;
  if (filling.fits(even, blocks)) {
    return even;
  }
  int most_layers = ceil_div(layers, filling.stages());
  std::vector<int> filled = filling.fill(blocks, most_layers);
  while (filled.empty()) {
    filled = filling.fill(blocks, ++most_layers);
  }
  return filled;
}

}  // namespace protean

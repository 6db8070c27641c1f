#include "model/pruned_checkpoint.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cost/pruned_spec.h"
#include "model/architecture.h"
#include "model/layer_quantizer.h"

namespace protean {
namespace {

// Returns the places of the elements of runs of `run` elements.
std::vector<std::int64_t> places_of(const std::vector<int>& runs, std::int64_t run) {
  std::vector<std::int64_t> places;
  for (const int index : runs) {
    for (std::int64_t i = 0; i < run; ++i) {
      places.push_back(index * run + i);
    }
  }
  return places;
}

// The number of elements in a row of a tensor of the model.
std::int64_t width_of(const ModelSpec& spec, TensorRole role) {
  for (const NeededTensor& need : needed_tensors(spec)) {
    if (need.role == role) {
      return need.columns == 0 ? need.rows : need.columns;
    }
  }
  check(false, "the model has the tensor");
  return 0;
}

}  // namespace

PrunedCheckpoint::PrunedCheckpoint(std::shared_ptr<const Checkpoint> original,
                                   const Pruning& pruning, std::vector<KeptWeights> layers)
    : original_(std::move(original)),
      spec_(pruned_spec(original_->spec(), pruning)),
      layers_(std::move(layers)) {
  check(std::ssize(layers_) == spec_.layers, "each layer says what stays");
  const AttentionSpec& attention = spec_.attention;
  for (const KeptWeights& kept : layers_) {
    if (pruning.kind == PruningKind::kStructured) {
      check(std::ssize(kept.heads) == attention.heads &&
                std::ssize(kept.kv_heads) == attention.kv_heads &&
                std::ssize(kept.neurons) == spec_.ffn,
            "each layer keeps what the pruned model has");
    }
    places_.push_back({places_of(kept.heads, attention.head_dim),
                       places_of(kept.kv_heads, attention.head_dim), places_of(kept.neurons, 1)});
  }
}

const std::vector<std::int64_t>* PrunedCheckpoint::rows_of(TensorRole role,
                                                           const Places& places) const {
  switch (role) {
    case TensorRole::kQuery:
      return &places.queries;
    case TensorRole::kKey:
    case TensorRole::kValue:
      return &places.keys;
    case TensorRole::kGate:
    case TensorRole::kUp:
      return &places.neurons;
    default:
      return nullptr;
  }
}

const std::vector<std::int64_t>* PrunedCheckpoint::columns_of(TensorRole role,
                                                              const Places& places) const {
  switch (role) {
    case TensorRole::kAttentionOutput:
    case TensorRole::kQueryBias:
      return &places.queries;
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
      return &places.keys;
    case TensorRole::kDown:
      return &places.neurons;
    default:
      return nullptr;
  }
}

void PrunedCheckpoint::mask(TensorRole role, int layer, std::int64_t row,
                            std::span<float> values) const {
  const auto* const place = std::find(kLayerMatrices.begin(), kLayerMatrices.end(), role);
  const KeptWeights& kept = layers_[static_cast<std::size_t>(layer)];
  if (kept.masks.empty() || place == kLayerMatrices.end()) {
    return;
  }
  const std::vector<bool>& stays =
      kept.masks[static_cast<std::size_t>(place - kLayerMatrices.begin())];
  const auto first = static_cast<std::size_t>(row * width_of(spec_, role));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = stays[first + i] ? values[i] : 0.0F;
  }
}

void PrunedCheckpoint::read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                                 float* out) const {
  const Places& places = places_[static_cast<std::size_t>(layer)];
  const std::vector<std::int64_t>* const rows = rows_of(role, places);
  const std::vector<std::int64_t>* const columns = columns_of(role, places);
  const bool all_rows = rows == nullptr || rows->empty();
  const bool all_columns = columns == nullptr || columns->empty();
  if (all_rows && all_columns) {
    original_->read_rows(role, layer, row, count, out);
    return mask(role, layer, row, {out, static_cast<std::size_t>(count * width_of(spec_, role))});
  }
  std::vector<float> whole(static_cast<std::size_t>(width_of(original_->spec(), role)));
  for (std::int64_t i = row; i < row + count; ++i) {
    original_->read_rows(role, layer, all_rows ? i : (*rows)[static_cast<std::size_t>(i)], 1,
                         whole.data());
    if (all_columns) {
      out = std::copy(whole.begin(), whole.end(), out);
    } else {
      out = std::transform(columns->begin(), columns->end(), out, [&](std::int64_t column) {
        return whole[static_cast<std::size_t>(column)];
      });
    }
  }
}

}  // namespace protean

#include "model/layer_tensors.h"

#include <algorithm>

#include "base/check.h"

namespace protean {
namespace {

ModelSpec spec_of_layer(const ModelSpec& model, int layer) {
  ModelSpec spec = model;
  spec.layers = 1;
  spec.attention.sliding_window = model.attention.window_of(layer);
  spec.attention.rotated.assign(1, model.attention.rotates(layer));
  spec.attention.windowed.clear();
  return spec;
}

}  // namespace

LayerTensors::LayerTensors(const Checkpoint& checkpoint, int layer)
    : spec_(spec_of_layer(checkpoint.spec(), layer)) {
  for (const NeededTensor& need : needed_tensors(spec_)) {
    if (is_outer(need.role)) {
      continue;
    }
    const std::int64_t rows = need.columns == 0 ? 1 : need.rows;
    const auto at = static_cast<std::size_t>(need.role);
    widths_[at] = need.columns == 0 ? need.rows : need.columns;
    tensors_[at].resize(static_cast<std::size_t>(rows * widths_[at]));
    checkpoint.read_rows(need.role, layer, 0, rows, tensors_[at].data());
    checkpoint.release(need.role, layer);
  }
}

std::vector<float>& LayerTensors::tensor(TensorRole role) {
  return tensors_[static_cast<std::size_t>(role)];
}

const std::vector<float>& LayerTensors::tensor(TensorRole role) const {
  return tensors_[static_cast<std::size_t>(role)];
}

void LayerTensors::read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                             float* out) const {
  const std::vector<float>& from = tensor(role);
  check(layer == 0 && row >= 0 && (row + count) * width(role) <= std::ssize(from),
        "rows are inside the tensor");
  std::copy_n(from.begin() + row * width(role), count * width(role), out);
}

}  // namespace protean

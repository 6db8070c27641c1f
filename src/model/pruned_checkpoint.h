#pragma once

#include <memory>
#include <vector>

#include "contract/configuration.h"
#include "model/checkpoint.h"
#include "model/layer_tensors.h"

namespace protean {

// What pruning leaves of a layer.
struct KeptWeights {
  // Structured: indices of what stays, in ascending order.
  std::vector<int> heads;
  std::vector<int> kv_heads;
  std::vector<int> neurons;
  // 2:4: for each matrix of kLayerMatrices (model/layer_quantizer.h) whether a weight stays.
  std::vector<std::vector<bool>> masks;
};

// A checkpoint as pruning leaves it. With 2:4 it has the sizes of the original and zeros in place
// of weights; structured pruning leaves a smaller model of the same architecture. Weights that stay
// are those of the original.
class PrunedCheckpoint final : public Checkpoint {
 public:
  // `layers` has an entry for each layer.
  PrunedCheckpoint(std::shared_ptr<const Checkpoint> original, const Pruning& pruning,
                   std::vector<KeptWeights> layers);

  const ModelSpec& spec() const override { return spec_; }
  const GenerationDefaults& generation() const override { return original_->generation(); }
  std::string description() const override { return original_->description(); }
  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override;
  Status unchanged() const override { return original_->unchanged(); }
  void release(TensorRole role, int layer) const override { original_->release(role, layer); }

 private:
  // Places of the original's rows and columns that stay, by layer; empty: all.
  struct Places {
    std::vector<std::int64_t> queries;
    std::vector<std::int64_t> keys;
    std::vector<std::int64_t> neurons;
  };
  const std::vector<std::int64_t>* rows_of(TensorRole role, const Places& places) const;
  const std::vector<std::int64_t>* columns_of(TensorRole role, const Places& places) const;
  void mask(TensorRole role, int layer, std::int64_t row, std::span<float> values) const;

  std::shared_ptr<const Checkpoint> original_;
  ModelSpec spec_;
  std::vector<KeptWeights> layers_;
  std::vector<Places> places_;
};

}  // namespace protean

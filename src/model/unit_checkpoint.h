#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cost/tp_units.h"
#include "model/checkpoint.h"

namespace protean {

// One unit of a model's layers (cost/tp_units.h) as a checkpoint of its own, so that what loads
// layers loads units: its heads' rows of the projections and columns of attention's output, its
// neurons' rows of gate and up and columns of down, with zeros for the padding; all of the norms.
// An output bias is unit 0's, the others have zeros there, because units are added up. Only layers;
// borrows the model.
class UnitCheckpoint final : public Checkpoint {
 public:
  UnitCheckpoint(const Checkpoint& model, int unit, int units);

  const ModelSpec& spec() const override { return spec_; }
  const GenerationDefaults& generation() const override { return model_.generation(); }
  std::string description() const override { return model_.description(); }
  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override;
  // Nothing where units do not begin with a group.
  std::optional<QuantFormat> stored_format(TensorRole role, int layer) const override;
  QuantizedMatrix read_stored_rows(TensorRole role, int layer, std::int64_t row,
                                   std::int64_t count) const override;
  void release(TensorRole role, int layer) const override { model_.release(role, layer); }

 private:
  // What a unit has of one dimension of a tensor: the model's [first, first + count), then zeros up
  // to `size`.
  struct Cut {
    std::int64_t model = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t size = 0;
  };
  Cut cut_heads(int model_heads, int unit_heads) const;
  Cut cut_neurons() const;
  Cut rows_of(TensorRole role) const;
  Cut columns_of(TensorRole role) const;  // of a vector, its elements

  const Checkpoint& model_;
  const int unit_;
  const int units_;
  const ModelSpec spec_;
};

}  // namespace protean

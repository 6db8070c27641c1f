#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cost/shards.h"
#include "model/checkpoint.h"

namespace protean {

// Presents one shard of a model (cost/shards.h) as a checkpoint, so that functions that load
// components load shards. It has its heads' rows of the projections and columns of the attention
// output, its neurons' rows of gate and up and columns of down, its rows of the embedding matrix
// and LM head, zeros for padding, all norms, and its heads' part of a norm over all heads. Shards
// are added up, so only shard 0 has the biases of the attention output and of down; the others have
// zeros. Borrows the model.
class ShardCheckpoint final : public Checkpoint {
 public:
  ShardCheckpoint(const Checkpoint& model, int shard, int shards);

  const ModelSpec& spec() const override { return spec_; }
  const GenerationDefaults& generation() const override { return model_.generation(); }
  std::string description() const override { return model_.description(); }
  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override;
  // Returns nothing if shards do not begin with a group.
  std::optional<QuantFormat> stored_format(TensorRole role, int layer) const override;
  QuantizedMatrix read_stored_rows(TensorRole role, int layer, std::int64_t row,
                                   std::int64_t count) const override;
  Status unchanged() const override { return model_.unchanged(); }
  void release(TensorRole role, int layer) const override { model_.release(role, layer); }

 private:
  // The range of a shard in one dimension of a tensor: the model's [first, first + count), then
  // zeros up to `size`.
  struct Cut {
    std::int64_t model = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t size = 0;
  };
  Cut cut_heads(int model_heads, int shard_heads) const;
  Cut cut_neurons() const;
  Cut cut_vocab() const;
  Cut rows_of(TensorRole role) const;
  Cut columns_of(TensorRole role) const;  // or a vector's elements

  const Checkpoint& model_;
  const int shard_;
  const int shards_;
  const ModelSpec spec_;
};

}  // namespace protean

#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <variant>

#include "base/ids.h"
#include "base/result.h"
#include "contract/model_spec.h"
#include "device/cpu/attention.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "device/cpu/team.h"
#include "model/weights.h"

namespace protean {

// Buffers for the activations of a step, allocated once for the largest step. A step touches only
// the memory that it uses. Serves one forward pass at a time.
class Scratch {
 public:
  // Allows steps of `max_rows` tokens and `max_logit_rows` rows for project_logits(), with these
  // shards of each layer.
  static Result<Scratch> create(const ModelSpec& spec, int max_rows, int max_logit_rows,
                                const ShardRun& shards = {});

  std::int64_t bytes() const { return memory_.bytes(); }
  int max_rows() const { return max_rows_; }
  int max_logit_rows() const { return max_logit_rows_; }

 private:
  friend class Forward;
  Scratch() = default;

  cpu::Region memory_;
  int max_rows_ = 0;
  int max_logit_rows_ = 0;
  std::span<float> residual_;  // [rows][hidden], carried between layers
  std::span<float> normed_;    // [rows][hidden]
  std::span<float> q_;
  std::span<float> k_;
  std::span<float> v_;
  std::span<float> mixed_;  // attention output, [rows][heads * head_dim]
  std::span<float> gate_;
  std::span<float> up_;
  std::span<float> arranged_;  // the input of a product, as kernels want it
  std::span<float> partial_;   // [shard][rows][hidden], addends of the residual stream
  std::span<float> logits_;    // [logit rows][vocab]
};

// The tokens of one step. `tokens` and `positions` have one entry per row; `slices` cover all rows.
struct ForwardBatch {
  std::span<const TokenId> tokens;
  std::span<const int> positions;
  std::span<const cpu::AttentionSlice> slices;

  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
};

struct LayerRange {
  int first = 0;
  int count = 0;
};

// The inputs of a layer's matrices. Query, key and value share one, gate and up another.
enum class LayerInput : std::uint8_t { kAttention, kAttentionOutput, kMlp, kDown };

// Sees the input of each matrix before the product. Calibration implements it.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  virtual void on_input(int layer, LayerInput which, std::span<const float> rows) = 0;
};

// Sums the partial rows of all devices of a stage in place, in the tree of cpu::sum_pieces over
// their shards. Every device of the stage calls it, in the same order.
using AllReduce = std::function<void(std::span<float> partial)>;

// The forward pass of a decoder. One sequence of operations serves every architecture; spec and
// weights are its data. Borrows everything and keeps no state except the residual stream in the
// scratch, so a pipeline stage is a call with its own range of layers. Computes each shard of a
// layer (cost/shards.h) alone and adds shards up in a fixed tree, on one device or on several. So a
// row's logits have the same bits in any batch, chunking, thread count and TP degree. Call embed(),
// then run_layers(), then normalise() and project_logits() any number of times.
class Forward {
 public:
  struct Parts {
    cpu::Team* team = nullptr;
    const ModelSpec* spec = nullptr;
    const ModelWeights* weights = nullptr;
    cpu::RopeTable rope;               // covers every position of the batch
    std::span<const cpu::KvLayer> kv;  // one per layer, with the heads of this device's shards
    Scratch* scratch = nullptr;
    InputObserver* observer = nullptr;  // may be null; needs layers of one shard
    AllReduce all_reduce;               // needed if other devices hold shards
  };
  explicit Forward(const Parts& parts);

  void embed(const ForwardBatch& batch) const;
  void run_layers(const ForwardBatch& batch, LayerRange range) const;
  void run_half(const ForwardBatch& batch, int layer, Component half) const;

  // Returns the residual stream [rows][hidden] before the next layer. Callers may read it or
  // replace it by the output of another forward pass.
  std::span<float> residual(std::int64_t rows) const;

  // Returns the output of the last layer, normalised and not rounded: [count][hidden], the batch's
  // rows from `first` on. Valid until the next call of normalise() or project_logits().
  std::span<const float> normalise(int first, int count) const;

  // Returns the logits [rows.size()][vocab] of these rows of the batch, valid until the next call.
  std::span<const float> project_logits(std::span<const int> rows) const;

 private:
  const ModelSpec& shard() const { return parts_.weights->shard_spec; }
  void attend(const ForwardBatch& batch, int layer) const;
  void feed_forward(const ForwardBatch& batch, int layer) const;
  void observe(int layer, LayerInput which, std::span<const float> rows) const;
  // Rows arranged for weights of one format and number of inputs.
  using Inputs = std::variant<cpu::MatmulRows, cpu::Int8Rows>;
  Inputs inputs_for(const cpu::PackedMatrix& weights, const cpu::RowSource& rows) const;
  cpu::RowSource normalised(std::int64_t rows, std::span<const float> norm,
                            const cpu::WeightFormat& format) const;
  Inputs gated(const cpu::RowSource& source, const LayerWeights& weights, int layer) const;
  void multiply(const Inputs& x, std::initializer_list<cpu::MatmulTarget> targets) const;
  void project_heads(const cpu::RowSource& source, const LayerWeights& weights) const;
  void rotate_heads(const ForwardBatch& batch, const LayerWeights& weights) const;
  void multiply_out(const Inputs& x, const cpu::PackedMatrix& matrix, std::span<const float> bias,
                    int index) const;
  void add_shards(std::int64_t rows) const;

  Parts parts_;
};

}  // namespace protean

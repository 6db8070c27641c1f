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

// Activations of one step, sized once for the largest one so that a step allocates nothing. Memory
// is touched only as far as steps use it. One forward at a time.
class Scratch {
 public:
  // At most max_rows tokens in a step and max_logit_rows rows in one project_logits, with these
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
  std::span<float> mixed_;  // attention's output, [rows][heads * head_dim]
  std::span<float> gate_;
  std::span<float> up_;
  std::span<float> arranged_;  // what a matrix is multiplied with
  std::span<float> partial_;   // [shard][rows][hidden], what each adds to the residual stream
  std::span<float> logits_;    // [logit rows][vocab]
};

// The tokens of one step. All spans have one entry per row but `slices`, which cover all rows.
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

// What the matrices of a layer read: queries, keys and values share one input, gate and up another.
enum class LayerInput : std::uint8_t { kAttention, kAttentionOutput, kMlp, kDown };

// Sees what each matrix is given, before it is multiplied: for calibration.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  virtual void on_input(int layer, LayerInput which, std::span<const float> rows) = 0;
};

// Adds up, in place, what the devices of a stage each have of the same rows, in the tree of
// cpu::sum_pieces over their shards. Every device of the stage calls it, in the same order.
using AllReduce = std::function<void(std::span<float> partial)>;

// The decoder's forward pass: one sequence of operations for every architecture, which exists here
// only as data (spec and weights). Borrows everything, keeps no state but the residual stream in
// the scratch, so a pipeline stage is a call with its own range. A layer's shards (cost/shards.h)
// are each computed alone and added up in a fixed tree, whether they are all here or each on a
// device. So a row's logits are the same bits in any batch, chunking, thread count and TP degree.
// Call in order: embed, run_layers, then normalise and project_logits as often as wanted.
class Forward {
 public:
  struct Parts {
    cpu::Team* team = nullptr;
    const ModelSpec* spec = nullptr;
    const ModelWeights* weights = nullptr;
    cpu::RopeTable rope;               // covers every position of the batch
    std::span<const cpu::KvLayer> kv;  // one per layer, the heads of the shards that are here
    Scratch* scratch = nullptr;
    InputObserver* observer = nullptr;  // may be null; of layers that are one shard
    AllReduce all_reduce;               // needed where other shards are elsewhere
  };
  explicit Forward(const Parts& parts);

  void embed(const ForwardBatch& batch) const;
  void run_layers(const ForwardBatch& batch, LayerRange range) const;
  void run_half(const ForwardBatch& batch, int layer, Component half) const;

  // The residual stream [rows][hidden] before the next layer, to be read or replaced by what
  // another forward pass left here.
  std::span<float> residual(std::int64_t rows) const;

  // The last layer's output, normalised and not rounded: [count][hidden] of the batch's rows from
  // `first` on. Valid until the next call of this or project_logits.
  std::span<const float> normalise(int first, int count) const;

  // Logits [rows.size()][vocab] of these rows of the batch, valid until the next call.
  std::span<const float> project_logits(std::span<const int> rows) const;

 private:
  const ModelSpec& shard() const { return parts_.weights->shard_spec; }
  void attend(const ForwardBatch& batch, int layer) const;
  void feed_forward(const ForwardBatch& batch, int layer) const;
  void observe(int layer, LayerInput which, std::span<const float> rows) const;
  // Rows as these weights, and others of their format and inputs, want them.
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

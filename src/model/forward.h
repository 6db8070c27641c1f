#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <variant>

#include "base/ids.h"
#include "base/result.h"
#include "contract/model_spec.h"
#include "cost/memory.h"
#include "device/cpu/attention.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/exchange.h"
#include "device/cpu/matmul.h"
#include "device/cpu/memory.h"
#include "device/cpu/team.h"
#include "model/rope_table.h"
#include "model/weights.h"

namespace protean {

// Buffers for the activations of a step, allocated once for the largest step. A step touches only
// the memory that it uses. Serves one forward pass at a time.
class Scratch {
 public:
  // Allows steps of `max_rows` tokens and `max_logit_rows` rows for project_logits(), on a device
  // with this share of the model.
  static Result<Scratch> create(const ModelSpec& spec, int max_rows, int max_logit_rows,
                                const DeviceShare& share = {});

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
  std::span<float> q_;         // [shard][rows][heads * head_dim], as k_ and v_
  std::span<float> k_;
  std::span<float> v_;
  std::span<float> squares_;  // [shard, and their sums][queries, keys][rows]
  std::span<float> mixed_;    // attention output of a shard, [rows][heads * head_dim]
  std::span<float> gate_;     // [shard][rows][ffn], as up_
  std::span<float> up_;
  std::span<float> arranged_;  // the input of a product, as kernels want it
  std::span<float> partial_;   // [level][rows][hidden], sums over shards on their way up the tree
  std::span<float> shard_logits_;  // [shard][logit rows][vocab of a shard]; empty if there is one
  std::span<float> logits_;        // [logit rows][vocab]
  std::span<float> added_;  // [rows][hidden], what a half adds; if halves are not parallel, normed_
};

// The tokens of one step, or some of them. `tokens` and `positions` have one entry per row;
// `slices` cover all rows. They are the rows of the residual stream from `first_row` on.
struct ForwardBatch {
  std::span<const TokenId> tokens;
  std::span<const int> positions;
  std::span<const cpu::AttentionSlice> slices;
  std::int64_t first_row = 0;

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

// The forward pass of a decoder on one device. One sequence of operations serves every
// architecture; spec and weights are its data. Borrows everything and keeps no state except the
// residual stream in the scratch, so a pipeline stage is a call with its own range of layers.
// Computes each shard of a component (cost/shards.h) alone and adds shards up in a fixed tree, on
// one device or on several, which exchange rows. So a row's logits have the same bits in any batch,
// chunking, thread count and TP degree. Call embed(), then run_layers(), then normalise() and
// project_logits() any number of times.
class Forward {
 public:
  struct Setup {
    cpu::Team* team = nullptr;
    const ModelSpec* spec = nullptr;
    const ModelWeights* weights = nullptr;
    RopeTables rope;                   // cover every position of the batch
    std::span<const cpu::KvLayer> kv;  // one per layer, with the heads of this device's shards
    Scratch* scratch = nullptr;
    InputObserver* observer = nullptr;  // may be null; needs layers of one shard
    cpu::Exchange* exchange = nullptr;  // needed if other devices hold shards
    bool draws = true;                  // whole rows of logits are wanted here
  };
  explicit Forward(const Setup& setup);

  void embed(const ForwardBatch& batch) const;
  void run_layers(const ForwardBatch& batch, LayerRange range) const;
  void run_half(const ForwardBatch& batch, int layer, Component half) const;

  // Returns rows of the residual stream, [rows][hidden], before the next layer. Callers may read it
  // or replace it by the output of another forward pass.
  std::span<float> residual(std::int64_t rows, std::int64_t first = 0) const;

  // Returns the output of the last layer, normalised and not rounded: [count][hidden], the batch's
  // rows from `first` on. Valid until the next call of normalise() or project_logits().
  std::span<const float> normalise(int first, int count) const;

  // Returns the logits [rows.size()][vocab] of these rows of the batch, valid until the next call.
  // `tile` counts the calls of a step. All devices that hold shards of the LM head call it alike;
  // those that do not draw get nothing.
  std::span<const float> project_logits(std::span<const int> rows, int tile = 0) const;

 private:
  const ModelSpec& shard() const { return setup_.weights->shard_spec; }
  bool whole() const { return setup_.weights->shards == 1; }
  bool alone(const ShardRun& run) const { return run.count == setup_.weights->shards; }
  void attend(const ForwardBatch& batch, int layer) const;
  void feed_forward(const ForwardBatch& batch, int layer) const;
  void observe(int layer, LayerInput which, std::span<const float> rows) const;
  // Rows arranged for weights of one format and number of inputs.
  using Inputs = std::variant<cpu::MatmulRows, cpu::Int8Rows>;
  Inputs inputs_for(const cpu::PackedMatrix& weights, const cpu::RowSource& rows) const;
  struct NormWeights {
    std::span<const float> weight;
    std::span<const float> bias;
  };
  void apply_norm(std::span<const float> rows, const NormWeights& norm, cpu::Element element,
                  std::span<float> out) const;
  cpu::RowSource normalised(std::span<const float> residual, const NormWeights& norm,
                            const cpu::WeightFormat& format) const;
  void multiply(const Inputs& x, std::initializer_list<cpu::MatmulTarget> targets) const;
  // A half of a layer whose shards are being added up.
  struct Half {
    int layer = 0;
    Component component = Component::kAttention;
    std::int64_t rows = 0;
    std::int64_t first_row = 0;  // in the residual stream
  };
  std::span<float> residual(const Half& half) const { return residual(half.rows, half.first_row); }
  // Queries, keys and values of one shard, [rows][heads * head_dim] each.
  struct HeadRows {
    std::span<float> q;
    std::span<float> k;
    std::span<float> v;
  };
  HeadRows heads_of(std::int64_t rows, int index) const;
  void project_heads(const Inputs& x, const Half& half, int index) const;
  std::span<const float> head_squares(const Half& half) const;
  void normalise_over_heads(const Half& half) const;
  void rotate_heads(const ForwardBatch& batch, const LayerWeights& weights, int layer,
                    const HeadRows& heads) const;
  std::optional<Inputs> gated(const Inputs& x, const LayerWeights& weights, const Half& half,
                              int index) const;
  const ShardRun& run_of(const Half& half) const {
    return setup_.weights->holding.of(half.layer, half.component);
  }
  const EmbeddingWeights& embeddings() const;  // the first shard here
  std::span<float> partial(const Half& half, int level) const;
  void multiply_out(const Inputs& x, const cpu::PackedMatrix& matrix, std::span<const float> bias,
                    const Half& half, int index) const;
  std::span<float> added(const Half& half) const;
  bool adds_directly(const Half& half) const;
  void add_shards(const Half& half) const;
  void add_shards_to(const Half& half, std::span<float> sum) const;
  void finish_half(const Half& half) const;
  void finish_embedding(std::span<float> rows, std::span<const int> positions) const;
  void gather_missing(const ForwardBatch& batch) const;
  void finish_logits(std::span<float> logits) const;
  void project_shards(std::span<const float> normed, std::int64_t count) const;
  void assemble(std::span<const cpu::ShownRows> shown, std::int64_t count) const;

  Setup setup_;
};

}  // namespace protean

#include "model/half_split_checkpoint.h"

#include <string>
#include <utility>
#include <vector>

namespace protean {
namespace {

class HalfSplitCheckpoint final : public Checkpoint {
 public:
  explicit HalfSplitCheckpoint(std::unique_ptr<Checkpoint> source)
      : source_(std::move(source)), spec_(source_->spec()) {
    spec_.rope.pairing = RopePairing::kHalfSplit;
  }

  const ModelSpec& spec() const override { return spec_; }
  const GenerationDefaults& generation() const override { return source_->generation(); }
  std::string description() const override { return source_->description(); }

  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    if (role == TensorRole::kQuery || role == TensorRole::kKey) {
      for (std::int64_t i = 0; i < count; ++i) {
        source_->read_rows(role, layer, source_row(row + i), 1, out + i * spec_.hidden);
      }
      return;
    }
    source_->read_rows(role, layer, row, count, out);
    if (role == TensorRole::kQueryBias || role == TensorRole::kKeyBias) {
      const AttentionSpec& attention = spec_.attention;
      const int heads = role == TensorRole::kQueryBias ? attention.heads : attention.kv_heads;
      const std::vector<float> bias(out, out + std::int64_t{heads} * attention.head_dim);
      for (std::int64_t i = 0; i < std::ssize(bias); ++i) {
        out[i] = bias[static_cast<std::size_t>(source_row(i))];
      }
    }
  }

  Status unchanged() const override { return source_->unchanged(); }
  Status current() const override { return source_->current(); }
  void release(TensorRole role, int layer) const override { source_->release(role, layer); }

 private:
  // Returns the source's row of the pair's first or second element.
  std::int64_t source_row(std::int64_t row) const {
    const std::int64_t head_dim = spec_.attention.head_dim;
    const std::int64_t at = row % head_dim;
    const std::int64_t half = head_dim / 2;
    return row - at + (at < half ? 2 * at : 2 * (at - half) + 1);
  }

  const std::unique_ptr<Checkpoint> source_;
  ModelSpec spec_;
};

}  // namespace

std::unique_ptr<Checkpoint> in_half_split_order(std::unique_ptr<Checkpoint> checkpoint) {
  if (checkpoint->spec().rope.pairing == RopePairing::kHalfSplit) {
    return checkpoint;
  }
  return std::make_unique<HalfSplitCheckpoint>(std::move(checkpoint));
}

}  // namespace protean

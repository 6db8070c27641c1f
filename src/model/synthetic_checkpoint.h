#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "model/checkpoint.h"

namespace protean {

// A model of any spec without a file, for tests and benchmarks. Every weight is a hash of its
// place; matrices are scaled so that activations keep their size from layer to layer.
class SyntheticCheckpoint : public Checkpoint {
 public:
  explicit SyntheticCheckpoint(ModelSpec spec) : spec_(std::move(spec)) {}

  const ModelSpec& spec() const override { return spec_; }
  const GenerationDefaults& generation() const override { return generation_; }
  std::string description() const override { return "synthetic"; }

  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    const std::int64_t width = row_length(role);
    for (std::int64_t i = row * width; i < (row + count) * width; ++i) {
      *out++ = weight(role, layer, i, width);
    }
  }
  void release(TensorRole, int) const override {}

  std::int64_t row_length(TensorRole role) const {
    const AttentionSpec& attention = spec_.attention;
    switch (role) {
      case TensorRole::kQueryNorm:
      case TensorRole::kKeyNorm:
        if (!attention.qk_norm_over_heads) {
          return attention.head_dim;
        }
        return row_length(role == TensorRole::kQueryNorm ? TensorRole::kQueryBias
                                                         : TensorRole::kKeyBias);
      case TensorRole::kAttentionOutput:
      case TensorRole::kQueryBias:
        return std::int64_t{attention.heads} * attention.head_dim;
      case TensorRole::kKeyBias:
      case TensorRole::kValueBias:
        return std::int64_t{attention.kv_heads} * attention.head_dim;
      case TensorRole::kDown:
      case TensorRole::kGateBias:
      case TensorRole::kUpBias:
        return spec_.ffn;
      case TensorRole::kOutputBias:
        return spec_.vocab;
      default:
        return spec_.hidden;
    }
  }

 private:
  float weight(TensorRole role, int layer, std::int64_t index, std::int64_t width) const {
    std::uint64_t hash = static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15U +
                         static_cast<std::uint64_t>(layer) * 0xD1B54A32D192ED03U +
                         static_cast<std::uint64_t>(role) * 0x8CB92BA72F3D8DD7U;
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9U;
    hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBU;
    const float unit = static_cast<float>((hash ^ (hash >> 31)) >> 40) * 0x1.0p-23F - 1.0F;
    switch (role) {
      case TensorRole::kFinalNorm:
      case TensorRole::kAttentionNorm:
      case TensorRole::kMlpNorm:
      case TensorRole::kQueryNorm:
      case TensorRole::kKeyNorm:
      case TensorRole::kAttentionPostNorm:
      case TensorRole::kMlpPostNorm:
        return 1.0F + 0.25F * unit;
      case TensorRole::kEmbedding:
        return spec_.tied_embeddings ? unit / std::sqrt(static_cast<float>(width)) : unit;
      default:
        return 1.5F * unit / std::sqrt(static_cast<float>(width));
    }
  }

  ModelSpec spec_;
  GenerationDefaults generation_;
};

}  // namespace protean

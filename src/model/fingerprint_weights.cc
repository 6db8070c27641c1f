#include "model/fingerprint_weights.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"

namespace protean {
namespace {

// A matrix or a vector of a component and its role in the checkpoint.
struct Tensor {
  TensorRole role;
  const cpu::PackedMatrix* matrix = nullptr;
  std::span<float> vector = {};
};

std::vector<Tensor> attention_tensors(const LayerWeights& layer) {
  return {{.role = TensorRole::kQuery, .matrix = &layer.query},
          {.role = TensorRole::kKey, .matrix = &layer.key},
          {.role = TensorRole::kValue, .matrix = &layer.value},
          {.role = TensorRole::kAttentionOutput, .matrix = &layer.attention_output},
          {.role = TensorRole::kAttentionNorm, .vector = layer.attention_norm},
          {.role = TensorRole::kQueryNorm, .vector = layer.query_norm},
          {.role = TensorRole::kKeyNorm, .vector = layer.key_norm},
          {.role = TensorRole::kQueryBias, .vector = layer.query_bias},
          {.role = TensorRole::kKeyBias, .vector = layer.key_bias},
          {.role = TensorRole::kValueBias, .vector = layer.value_bias},
          {.role = TensorRole::kAttentionNormBias, .vector = layer.attention_norm_bias},
          {.role = TensorRole::kAttentionPostNorm, .vector = layer.post_norm.attention},
          {.role = TensorRole::kAttentionOutputBias, .vector = layer.attention_output_bias}};
}

std::vector<Tensor> mlp_tensors(const LayerWeights& layer) {
  std::vector<Tensor> tensors = {{.role = TensorRole::kUp, .matrix = &layer.up},
                                 {.role = TensorRole::kDown, .matrix = &layer.down},
                                 {.role = TensorRole::kMlpNorm, .vector = layer.mlp_norm},
                                 {.role = TensorRole::kMlpNormBias, .vector = layer.mlp_norm_bias},
                                 {.role = TensorRole::kGateBias, .vector = layer.mlp_bias.gate},
                                 {.role = TensorRole::kUpBias, .vector = layer.mlp_bias.up},
                                 {.role = TensorRole::kDownBias, .vector = layer.mlp_bias.down},
                                 {.role = TensorRole::kMlpPostNorm, .vector = layer.post_norm.mlp}};
  if (layer.gate.outputs > 0) {
    tensors.insert(tensors.begin(), {.role = TensorRole::kGate, .matrix = &layer.gate});
  }
  return tensors;
}

std::vector<Tensor> embedding_tensors(const EmbeddingWeights& embeddings, const ModelSpec& spec) {
  std::vector<Tensor> tensors = {
      {.role = TensorRole::kEmbedding, .matrix = &embeddings.embedding},
      {.role = TensorRole::kFinalNorm, .vector = embeddings.final_norm},
      {.role = TensorRole::kFinalNormBias, .vector = embeddings.final_norm_bias},
      {.role = TensorRole::kOutputBias, .vector = embeddings.output_bias}};
  if (!spec.tied_embeddings) {
    tensors.push_back({.role = TensorRole::kOutput, .matrix = &embeddings.output});
  }
  return tensors;
}

Status fill(const Checkpoint& checkpoint, int layer, const Tensor& tensor, cpu::Team& team) {
  if (tensor.matrix == nullptr) {
    if (!tensor.vector.empty()) {
      checkpoint.read_rows(tensor.role, layer, 0, 1, tensor.vector.data());
    }
    return {};
  }
  const cpu::PackedMatrix& matrix = *tensor.matrix;
  const std::int64_t rows = std::min<std::int64_t>(matrix.outputs, cpu::PackedMatrix::kPanel);
  std::vector<float> values(static_cast<std::size_t>(rows * matrix.inputs));
  checkpoint.read_rows(tensor.role, layer, 0, rows, values.data());
  if (Status packed = pack_rows(matrix, 0, values); !packed.ok()) {
    return packed;
  }
  const std::int64_t bytes = matrix.panel_bytes();
  team.run(matrix.panels() - 1, [&](std::int64_t panel, int) {
    std::memcpy(matrix.data + (panel + 1) * bytes, matrix.data, static_cast<std::size_t>(bytes));
  });
  return {};
}

}  // namespace

ModelSpec with_layers(ModelSpec spec, int layers) {
  check(layers > 0 && layers <= spec.layers, "a fingerprint has layers of the model");
  spec.layers = layers;
  if (!spec.stored.layers.empty()) {
    spec.stored.layers.resize(static_cast<std::size_t>(layers));
  }
  return spec;
}

Status load_repeated(const Checkpoint& checkpoint, const ModelSpec& spec,
                     const ComponentVariant& which, cpu::Team& team, std::byte* memory) {
  check(which.shards == 1, "a fingerprint has whole components");
  if (Status same = checkpoint.unchanged(); !same.ok()) {
    return same;
  }
  LayerWeights layer;
  EmbeddingWeights embeddings;
  std::vector<Tensor> tensors;
  if (which.component == Component::kEmbeddings) {
    bind_embeddings(embeddings, spec, which.precision, memory);
    tensors = embedding_tensors(embeddings, spec);
  } else {
    bind_half(layer, spec, which.component, which.precision, memory);
    tensors =
        which.component == Component::kAttention ? attention_tensors(layer) : mlp_tensors(layer);
  }
  for (const Tensor& tensor : tensors) {
    if (Status filled = fill(checkpoint, which.layer, tensor, team); !filled.ok()) {
      return filled;
    }
  }
  return {};
}

void copy_checked(std::span<const std::byte> from, std::span<std::byte> to) {
  std::memcpy(to.data(), from.data(), from.size());
  const volatile std::uint64_t checksum = XXH3_128bits(to.data(), from.size()).low64;
  (void)checksum;
}

}  // namespace protean

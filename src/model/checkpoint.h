#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "contract/model_spec.h"
#include "contract/request.h"
#include "quant/quantized_matrix.h"

namespace protean {

// The role of a tensor. Tensors of a layer are named with the layer's index, the others with layer
// 0.
enum class TensorRole : std::uint8_t {
  kEmbedding,  // [vocab][hidden]
  kFinalNorm,  // [hidden]
  kOutput,     // [vocab][hidden]; absent when tied
  kAttentionNorm,
  kQuery,  // [heads * head_dim][hidden]
  kKey,    // [kv_heads * head_dim][hidden]
  kValue,
  kAttentionOutput,  // [hidden][heads * head_dim]
  kQueryBias,
  kKeyBias,
  kValueBias,
  kAttentionOutputBias,
  kQueryNorm,  // [head_dim]
  kKeyNorm,
  kMlpNorm,
  kGate,  // [ffn][hidden]
  kUp,
  kDown,  // [hidden][ffn]
  kFinalNormBias,
  kOutputBias,  // [vocab]
  kPositions,   // [max_context][hidden]
  kAttentionNormBias,
  kAttentionPostNorm,  // norm of what attention adds to the residual stream
  kMlpNormBias,
  kGateBias,  // [ffn]
  kUpBias,
  kDownBias,  // [hidden]
  kMlpPostNorm,
};
constexpr int kTensorRoles = 28;

// Returns true for tensors outside the layers.
constexpr bool is_outer(TensorRole role) {
  return role == TensorRole::kEmbedding || role == TensorRole::kFinalNorm ||
         role == TensorRole::kOutput || role == TensorRole::kFinalNormBias ||
         role == TensorRole::kOutputBias || role == TensorRole::kPositions;
}

std::string_view name_of(TensorRole role);  // "query projection", for people

// A memory-mapped checkpoint: spec and weights, independent of the file format. Reading cannot
// fail while the files are unchanged(), because open_checkpoint() has verified that every tensor of
// the spec exists, lies inside its file and has a supported type and the right shape. Used by one
// thread at a time.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  virtual const ModelSpec& spec() const = 0;
  virtual const GenerationDefaults& generation() const = 0;
  virtual std::string description() const = 0;  // "safetensors, 2 files, bf16"

  // Reads rows [row, row + count) as f32 into out [count][row length]. A vector is one row. F32,
  // F16 and BF16 are read without loss, quantised types are dequantised.
  virtual void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                         float* out) const = 0;

  // Returns the format of a layer's matrix that is stored as integers which kernels can use
  // unchanged; nothing for other tensors.
  virtual std::optional<QuantFormat> stored_format(TensorRole, int /*layer*/) const {
    return std::nullopt;
  }
  // Reads rows [row, row + count) of such a matrix as integers, without converting to f32. Scales
  // may need more bits than f16 has (Q4_K). If the format is not symmetric, offsets are arbitrary.
  virtual QuantizedMatrix read_stored_rows(TensorRole role, int layer, std::int64_t row,
                                           std::int64_t count) const;

  // Fails if a file was written after it was opened, which names the file. Its bytes may be other
  // weights then, and reading what was cut off would end the process.
  virtual Status unchanged() const { return {}; }
  // Fails if open_checkpoint() would read other weights: a file of these was written, or another
  // one or none has its path now. Looks at no other files.
  virtual Status current() const { return unchanged(); }

  // Gives back the memory of the tensor's file pages. Reading the tensor again is allowed.
  virtual void release(TensorRole role, int layer) const = 0;
};

// Opens a Hugging Face directory or a .gguf file. Errors name file, tensor and remedy in one line.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path);

}  // namespace protean

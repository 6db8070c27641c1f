#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "contract/model_spec.h"
#include "contract/request.h"
#include "quant/quantized_matrix.h"

namespace protean {

// What a tensor is for. Layer roles go with a layer index, the others with layer 0.
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
};

// A checkpoint on disk, memory-mapped: spec and weights, whatever the file format. open_checkpoint
// has verified that every tensor the spec needs is there, inside its file, of a type we read and of
// the right shape, so reading cannot fail. One thread at a time.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  virtual const ModelSpec& spec() const = 0;
  virtual const GenerationDefaults& generation() const = 0;
  virtual std::string description() const = 0;  // "safetensors, 2 files, bf16"

  // Rows [row, row + count) as f32 into out [count][row length]; a vector is one row. Lossless for
  // F32, F16 and BF16, dequantised for what is quantised.
  virtual void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                         float* out) const = 0;

  // The format of a matrix that is stored as integers which kernels can take as they are; nothing
  // for any other, and for tensors around the layers.
  virtual std::optional<QuantFormat> stored_format(TensorRole, int /*layer*/) const {
    return std::nullopt;
  }
  // Rows [row, row + count) of such a matrix, as its file has them and not by way of f32. Scales
  // may need more bits than f16 has (Q4_K), and a format that is not symmetric any offsets.
  virtual QuantizedMatrix read_stored_rows(TensorRole role, int layer, std::int64_t row,
                                           std::int64_t count) const;

  // The tensor's file pages are not needed any more: they stop counting as this process's memory.
  virtual void release(TensorRole role, int layer) const = 0;
};

// A Hugging Face directory or a .gguf file. Errors name file, tensor and remedy in one line.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path);

}  // namespace protean

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

// The role of a tensor in a model. Roles outside layers are used with layer 0.
enum class TensorRole : std::uint8_t {
  kEmbedding,  // [vocab][hidden]
  kFinalNorm,  // [hidden]
  kOutput,     // [vocab][hidden]; absent if tied
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

// A model on disk, memory-mapped, in any supported file format. open_checkpoint() has checked that
// every tensor of the spec exists, is inside its file, and has a supported type and the right
// shape, so that reading cannot fail. May be used by one thread at a time.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  virtual const ModelSpec& spec() const = 0;
  virtual const GenerationDefaults& generation() const = 0;
  virtual std::string description() const = 0;  // "safetensors, 2 files, bf16"

  // Reads rows [row, row + count) as f32 into out [count][row length]. A vector is one row.
  // Lossless for F32, F16 and BF16; quantised types are dequantised.
  virtual void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                         float* out) const = 0;

  // Returns the format of a matrix whose integers kernels can use without dequantising; nothing for
  // all others, for the embedding matrix and for the LM head.
  virtual std::optional<QuantFormat> stored_format(TensorRole, int /*layer*/) const {
    return std::nullopt;
  }
  // Reads the integers of rows [row, row + count) of such a matrix. Scales may need more bits than
  // f16 has (Q4_K), and offsets of formats that are not symmetric may be any number.
  virtual QuantizedMatrix read_stored_rows(TensorRole role, int layer, std::int64_t row,
                                           std::int64_t count) const;

  // Releases the memory of a tensor's file pages.
  virtual void release(TensorRole role, int layer) const = 0;
};

// Opens a Hugging Face directory or a .gguf file. Errors name the file, the tensor and a remedy.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path);

}  // namespace protean

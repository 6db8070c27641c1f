#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/model_spec.h"
#include "contract/request.h"
#include "model/architecture.h"
#include "model/checkpoint.h"
#include "model/dequantize.h"
#include "model/gguf.h"
#include "model/hf_config.h"
#include "model/packed_codes.h"
#include "model/safetensors.h"

namespace protean {

// A tensor as described by its file. Its bytes are inside the file.
struct FoundTensor {
  std::string type_name;
  std::optional<TensorType> type;   // empty if not supported
  std::vector<std::int64_t> shape;  // outermost dimension first
  std::span<const std::byte> bytes;
  const std::string* file = nullptr;  // for errors
};

// A tensor that a spec needs. TensorTable has one for each role and layer.
struct StoredTensor {
  TensorType type = TensorType::kF32;
  std::int64_t rows = 0;  // 0 if the model has no such tensor
  std::int64_t columns = 0;
  const std::byte* data = nullptr;
  std::optional<PackedCodes> packed;  // instead of type and data
};

struct TensorTable {
  std::vector<StoredTensor> tensors;
  std::string types;  // types of the matrices for readers: "BF16", "Q4_K and Q6_K"

  static std::size_t slot(TensorRole role, int layer);
};

using FindTensor = std::function<Result<FoundTensor>(const std::string& name)>;
// Returns a matrix of this size that is stored as packed integers; nothing if it is a plain tensor.
using FindPacked = std::function<Result<std::optional<PackedCodes>>(
    const std::string& name, std::int64_t rows, std::int64_t inputs)>;

// Fails unless each needed tensor exists and has a supported type and the right shape.
Result<TensorTable> collect_tensors(const ModelSpec& spec, const TensorNames& names,
                                    const FindTensor& find, const FindPacked& find_packed = {});

// The parts of a checkpoint, from the reader of a file format. The files own the memory of the
// tensors.
struct CheckpointParts {
  ModelSpec spec;
  GenerationDefaults generation;
  std::string description;
  TensorTable table;
  std::vector<SafetensorsFile> safetensors;
  std::optional<GgufFile> gguf;
};

std::unique_ptr<Checkpoint> make_checkpoint(CheckpointParts parts);

// The file formats of open_checkpoint().
Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const std::filesystem::path& directory);
Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(HfConfig config, SafetensorsFile file);
Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(GgufFile file);

}  // namespace protean

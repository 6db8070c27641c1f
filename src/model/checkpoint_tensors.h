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

// A tensor as its file describes it, its byte range already checked against the file.
struct FoundTensor {
  std::string type_name;
  std::optional<TensorType> type;   // nothing if we cannot read it
  std::vector<std::int64_t> shape;  // outermost dimension first
  std::span<const std::byte> bytes;
  const std::string* file = nullptr;  // for messages
};

// Every tensor a spec needs, by role and layer.
struct StoredTensor {
  TensorType type = TensorType::kF32;
  std::int64_t rows = 0;  // 0: not there
  std::int64_t columns = 0;
  const std::byte* data = nullptr;
  std::optional<PackedCodes> packed;  // instead of type and data
};

struct TensorTable {
  std::vector<StoredTensor> tensors;
  std::string types;  // of the matrices, for people: "BF16", "Q4_K and Q6_K"

  static std::size_t slot(TensorRole role, int layer);
};

using FindTensor = std::function<Result<FoundTensor>(const std::string& name)>;
// The matrix of these sizes as packed integers; nothing where it is stored as a plain tensor.
using FindPacked = std::function<Result<std::optional<PackedCodes>>(
    const std::string& name, std::int64_t rows, std::int64_t inputs)>;

// Fails unless each needed tensor is there, readable and of the right shape.
Result<TensorTable> collect_tensors(const ModelSpec& spec, const TensorNames& names,
                                    const FindTensor& find, const FindPacked& find_packed = {});

// What a checkpoint file format reader hands over. files own the memory that tensors point into.
struct CheckpointParts {
  ModelSpec spec;
  GenerationDefaults generation;
  std::string description;
  TensorTable table;
  std::vector<SafetensorsFile> safetensors;
  std::optional<GgufFile> gguf;
};

std::unique_ptr<Checkpoint> make_checkpoint(CheckpointParts parts);

// The formats behind open_checkpoint().
Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const std::filesystem::path& directory);
Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(HfConfig config, SafetensorsFile file);
Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(GgufFile file);

}  // namespace protean

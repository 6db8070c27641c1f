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

// A tensor as its file describes it. Its byte range has been checked against the file.
struct FoundTensor {
  std::string type_name;
  std::optional<TensorType> type;   // nothing if the type is not supported
  std::vector<std::int64_t> shape;  // outermost dimension first
  std::span<const std::byte> bytes;
  const std::string* file = nullptr;  // for messages
};

// Where the rows of a tensor lie within a file's tensor: every `block` of them follow each other,
// and blocks are `stride` rows apart.
struct RowPlace {
  std::int64_t offset = 0;
  std::int64_t block = 0;
  std::int64_t stride = 0;
  std::int64_t file_rows = 0;  // rows of the file's tensor

  std::int64_t of(std::int64_t row) const { return offset + row / block * stride + row % block; }
};

// A tensor of a checkpoint, plain or packed.
struct StoredTensor {
  TensorType type = TensorType::kF32;
  std::int64_t rows = 0;  // 0: the model has no such tensor
  std::int64_t columns = 0;
  const std::byte* data = nullptr;    // the bytes of the file's tensor
  std::optional<PackedCodes> packed;  // replaces type and data
  RowPlace place;                     // where its rows lie, or a vector's elements
  bool inputs_first = false;          // the file has [columns][rows]
  float plus = 0.0F;                  // is added to what the file has
};

struct TensorTable {
  std::vector<StoredTensor> tensors;
  std::string types;  // types of the matrices, for people: "BF16" or "Q4_K and Q6_K"

  static std::size_t slot(TensorRole role, int layer);
};

using FindTensor = std::function<Result<FoundTensor>(const std::string& name)>;
// Returns the matrix of these sizes as packed integers; nothing if it is stored as a plain tensor.
using FindPacked = std::function<Result<std::optional<PackedCodes>>(
    const std::string& name, std::int64_t rows, std::int64_t inputs)>;

// Collects every tensor that the spec needs. Fails if one is missing, not readable or of another
// shape. Logs a warning if the checkpoint has more layers.
Result<TensorTable> collect_tensors(const ModelSpec& spec, const TensorLayout& layout,
                                    const FindTensor& find, const FindPacked& find_packed = {});

// The result of reading a checkpoint's files. The files own the memory that the tensors point into.
struct CheckpointContents {
  ModelSpec spec;  // `stored` says only whether the weights are pruned to 2:4
  GenerationDefaults generation;
  std::string description;
  TensorTable table;
  std::vector<SafetensorsFile> safetensors;
  std::optional<GgufFile> gguf;
};

std::unique_ptr<Checkpoint> make_checkpoint(CheckpointContents contents);

// Open the formats that open_checkpoint() supports.
Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const std::filesystem::path& directory);
Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(HfConfig config, SafetensorsFile file);
Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(GgufFile file);

}  // namespace protean

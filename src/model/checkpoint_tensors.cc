#include "model/checkpoint_tensors.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/mapped_file.h"

namespace protean {
namespace {

constexpr std::size_t kRoles = std::tuple_size_v<TensorNames>;

Result<StoredTensor> accept(const NeededTensor& need, const std::string& name,
                            const FoundTensor& found) {
  if (!found.type) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: tensor {} is of type {}, which is not supported: convert the model to "
                      "F32, F16 or BF16, or as GGUF also to Q8_0, Q4_0, Q4_K or Q6_K",
                      *found.file, name, found.type_name);
  }
  std::vector<std::int64_t> want = {need.rows};
  if (need.columns != 0) {
    want.push_back(need.columns);
  }
  if (found.shape != want) {
    return make_error(
        ErrorCode::kCorrupt,
        "{}: tensor {} has shape [{}] where the config needs [{}]: config and weights "
        "are not of the same model",
        *found.file, name, fmt::join(found.shape, ", "), fmt::join(want, ", "));
  }
  StoredTensor stored{.type = *found.type, .data = found.bytes.data()};
  stored.rows = need.columns == 0 ? 1 : need.rows;
  stored.columns = need.columns == 0 ? need.rows : need.columns;
  const BlockFormat& format = block_format(stored.type);
  const std::int64_t bytes = stored.rows * (stored.columns / format.elements) * format.bytes;
  check(stored.columns % format.elements == 0 &&
            static_cast<std::int64_t>(found.bytes.size()) == bytes,
        "a file reader has checked a tensor's size");
  return stored;
}

class FileCheckpoint final : public Checkpoint {
 public:
  explicit FileCheckpoint(CheckpointParts parts) : parts_(std::move(parts)) {}

  const ModelSpec& spec() const override { return parts_.spec; }
  const GenerationDefaults& generation() const override { return parts_.generation; }
  std::string description() const override { return parts_.description; }

  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    const StoredTensor& tensor = at(role, layer);
    check(row >= 0 && count >= 0 && row <= tensor.rows - count, "rows are inside the tensor");
    const std::byte* from = tensor.data + row * row_bytes(tensor);
    dequantize(tensor.type, from, count * tensor.columns, out);
  }

  void release(TensorRole role, int layer) const override {
    const StoredTensor& tensor = at(role, layer);
    release_pages({tensor.data, static_cast<std::size_t>(tensor.rows * row_bytes(tensor))});
  }

 private:
  static std::int64_t row_bytes(const StoredTensor& tensor) {
    const BlockFormat& format = block_format(tensor.type);
    return tensor.columns / format.elements * format.bytes;
  }

  const StoredTensor& at(TensorRole role, int layer) const {
    const std::size_t slot = TensorTable::slot(role, layer);
    check(layer >= 0 && slot < parts_.table.tensors.size() && parts_.table.tensors[slot].rows > 0,
          "the model has this tensor");
    return parts_.table.tensors[slot];
  }

  CheckpointParts parts_;
};

}  // namespace

std::size_t TensorTable::slot(TensorRole role, int layer) {
  return static_cast<std::size_t>(layer) * kRoles + static_cast<std::size_t>(role);
}

Result<TensorTable> collect_tensors(const ModelSpec& spec, const TensorNames& names,
                                    const FindTensor& find) {
  TensorTable table;
  table.tensors.resize(static_cast<std::size_t>(spec.layers) * kRoles);
  std::vector<std::string_view> types;
  for (const NeededTensor& need : needed_tensors(spec)) {
    const std::string name = tensor_name(names, need.role, need.layer);
    const Result<FoundTensor> found = find(name);
    if (!found) {
      return found.error();
    }
    const Result<StoredTensor> stored = accept(need, name, *found);
    if (!stored) {
      return stored.error();
    }
    table.tensors[TensorTable::slot(need.role, need.layer)] = *stored;
    const std::string_view type = block_format(stored->type).name;
    if (need.columns != 0 && std::find(types.begin(), types.end(), type) == types.end()) {
      types.push_back(type);
    }
  }
  table.types = fmt::format("{}", fmt::join(types, " and "));
  return table;
}

std::unique_ptr<Checkpoint> make_checkpoint(CheckpointParts parts) {
  return std::make_unique<FileCheckpoint>(std::move(parts));
}

}  // namespace protean

#include "model/checkpoint_tensors.h"

#include <algorithm>
#include <limits>
#include <map>
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
                      "F32, F16 or BF16, or as GGUF also to Q8_0, Q6_K, Q5_K, Q4_K or Q4_0",
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

// Returns "AWQ w4 g128", for people.
std::string type_name(const PackedCodes& packed) {
  return fmt::format("{} w{} g{}", packed.how.packing == CodePacking::kAwq ? "AWQ" : "GPTQ",
                     packed.how.bits, packed.how.group_of(packed.inputs));
}

bool is_layer_matrix(const NeededTensor& need) {
  return need.columns != 0 && need.role != TensorRole::kEmbedding &&
         need.role != TensorRole::kOutput;
}

// Returns the format of a matrix whose integers kernels can use unchanged.
std::optional<QuantFormat> kept_format(const StoredTensor& tensor) {
  if (!tensor.packed) {
    return code_format(tensor.type);
  }
  const PackedCodes& packed = *tensor.packed;
  const std::int64_t group = std::min<std::int64_t>(packed.how.group_of(packed.inputs), 256);
  const QuantFormat format{.bits = packed.how.bits, .group = static_cast<int>(group)};
  return packed.group_index == nullptr && validate(format).ok() ? std::optional(format)
                                                                : std::nullopt;
}

// Integers that must be rounded again lose next to nothing at 8 bits.
int bits_to_keep(const StoredTensor& tensor) {
  constexpr int kFloat = 16;
  if (const auto kept = kept_format(tensor)) {
    return kept->bits;
  }
  return tensor.packed || block_format(tensor.type).elements > 1 ? 8 : kFloat;
}

Precision precision_of(int bits) {
  return bits > 8   ? Precision::kBf16
         : bits > 4 ? Precision::kW8
         : bits > 3 ? Precision::kW4
                    : Precision::kW3;
}

Component half_of(TensorRole role) {
  const bool mlp =
      role == TensorRole::kGate || role == TensorRole::kUp || role == TensorRole::kDown;
  return mlp ? Component::kMlp : Component::kAttention;
}

StoredWeights stored_weights(const ModelSpec& spec, const TensorTable& table) {
  StoredWeights stored;
  std::map<std::pair<int, Component>, int> bits;
  for (const NeededTensor& need : needed_tensors(spec)) {
    if (!is_layer_matrix(need)) {
      continue;
    }
    const StoredTensor& tensor = table.tensors[TensorTable::slot(need.role, need.layer)];
    int& of_half = bits[{need.layer, half_of(need.role)}];
    of_half = std::max(of_half, bits_to_keep(tensor));
    if (const auto kept = kept_format(tensor)) {
      stored.group = std::min(stored.group, kept->group);
    }
  }
  int least = std::numeric_limits<int>::max();
  int most = 0;
  stored.layers.resize(static_cast<std::size_t>(spec.layers));
  for (const auto& [which, of_half] : bits) {
    stored.layers[static_cast<std::size_t>(which.first)].of(which.second) = precision_of(of_half);
    least = std::min(least, of_half);
    most = std::max(most, of_half);
  }
  stored.precision = precision_of(most);
  if (precision_of(least) == stored.precision) {
    stored.layers.clear();
  }
  return stored;
}

class FileCheckpoint final : public Checkpoint {
 public:
  explicit FileCheckpoint(CheckpointContents contents) : contents_(std::move(contents)) {}

  const ModelSpec& spec() const override { return contents_.spec; }
  const GenerationDefaults& generation() const override { return contents_.generation; }
  std::string description() const override { return contents_.description; }

  void read_rows(TensorRole role, int layer, std::int64_t row, std::int64_t count,
                 float* out) const override {
    const StoredTensor& tensor = at(role, layer, row, count);
    if (tensor.packed) {
      return dequantize(*tensor.packed, row, count, out);
    }
    dequantize(tensor.type, tensor.data + row * row_bytes(tensor), count * tensor.columns, out);
  }

  std::optional<QuantFormat> stored_format(TensorRole role, int layer) const override {
    const StoredTensor& tensor = at(role, layer, 0, 0);
    if (role == TensorRole::kEmbedding || role == TensorRole::kOutput || tensor.rows == 1) {
      return std::nullopt;
    }
    return tensor.packed ? code_format(*tensor.packed) : code_format(tensor.type);
  }

  QuantizedMatrix read_stored_rows(TensorRole role, int layer, std::int64_t row,
                                   std::int64_t count) const override {
    const StoredTensor& tensor = at(role, layer, row, count);
    const std::optional<QuantFormat> format = stored_format(role, layer);
    check(format.has_value(), "only a matrix with a stored format is read as integers");
    QuantizedMatrix matrix = QuantizedMatrix::sized(*format, count, tensor.columns);
    const CodeRun run{matrix.codes.data(), matrix.scales.data(), matrix.offsets.data()};
    if (tensor.packed) {
      read_codes(*tensor.packed, row, count, run);
    } else {
      read_codes(tensor.type, tensor.data + row * row_bytes(tensor), count * tensor.columns, run);
    }
    return matrix;
  }

  void release(TensorRole role, int layer) const override {
    const StoredTensor& tensor = at(role, layer, 0, 0);
    if (!tensor.packed) {
      return release_pages(
          {tensor.data, static_cast<std::size_t>(tensor.rows * row_bytes(tensor))});
    }
    const PackedCodes& packed = *tensor.packed;
    const std::int64_t words = packed.inputs * packed.how.bits * packed.rows / 32;
    release_pages({packed.codes, static_cast<std::size_t>(words) * sizeof(std::uint32_t)});
  }

 private:
  static std::int64_t row_bytes(const StoredTensor& tensor) {
    const BlockFormat& format = block_format(tensor.type);
    return tensor.columns / format.elements * format.bytes;
  }

  const StoredTensor& at(TensorRole role, int layer, std::int64_t row, std::int64_t count) const {
    const std::size_t slot = TensorTable::slot(role, layer);
    check(layer >= 0 && slot < contents_.table.tensors.size() &&
              contents_.table.tensors[slot].rows > 0,
          "the model has this tensor");
    const StoredTensor& tensor = contents_.table.tensors[slot];
    check(row >= 0 && count >= 0 && row <= tensor.rows - count, "rows are inside the tensor");
    return tensor;
  }

  CheckpointContents contents_;
};

}  // namespace

std::size_t TensorTable::slot(TensorRole role, int layer) {
  return static_cast<std::size_t>(layer) * kRoles + static_cast<std::size_t>(role);
}

Result<TensorTable> collect_tensors(const ModelSpec& spec, const TensorNames& names,
                                    const FindTensor& find, const FindPacked& find_packed) {
  TensorTable table;
  table.tensors.resize(static_cast<std::size_t>(spec.layers) * kRoles);
  std::vector<std::string> types;
  const auto note = [&](std::string type) {
    if (std::find(types.begin(), types.end(), type) == types.end()) {
      types.push_back(std::move(type));
    }
  };
  for (const NeededTensor& need : needed_tensors(spec)) {
    const std::string name = tensor_name(names, need.role, need.layer);
    StoredTensor& slot = table.tensors[TensorTable::slot(need.role, need.layer)];
    if (find_packed && need.columns != 0 && need.role != TensorRole::kEmbedding) {
      Result<std::optional<PackedCodes>> packed = find_packed(name, need.rows, need.columns);
      if (!packed) {
        return packed.error();
      }
      if (packed->has_value()) {
        slot = {.rows = need.rows, .columns = need.columns, .packed = *packed};
        note(type_name(*slot.packed));
        continue;
      }
    }
    const Result<FoundTensor> found = find(name);
    if (!found) {
      return found.error();
    }
    const Result<StoredTensor> stored = accept(need, name, *found);
    if (!stored) {
      return stored.error();
    }
    slot = *stored;
    if (need.columns != 0) {
      note(std::string(block_format(stored->type).name));
    }
  }
  table.types = fmt::format("{}", fmt::join(types, " and "));
  return table;
}

std::unique_ptr<Checkpoint> make_checkpoint(CheckpointContents contents) {
  const bool two_of_four = contents.spec.stored.precision == Precision::kS24;
  contents.spec.stored = stored_weights(contents.spec, contents.table);
  if (two_of_four && contents.spec.stored.precision == Precision::kBf16) {
    contents.spec.stored.precision = Precision::kS24;
  }
  return std::make_unique<FileCheckpoint>(std::move(contents));
}

}  // namespace protean

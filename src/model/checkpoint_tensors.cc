#include "model/checkpoint_tensors.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "model/mapped_file.h"

namespace protean {
namespace {

constexpr std::size_t kRoles = std::tuple_size_v<TensorNames>;

bool is_norm(TensorRole role) {
  switch (role) {
    case TensorRole::kFinalNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kAttentionPostNorm:
    case TensorRole::kMlpPostNorm:
      return true;
    default:
      return false;
  }
}

// Returns the roles whose rows may follow those of `role` in one tensor, itself included.
std::vector<TensorRole> fusable_with(TensorRole role) {
  using Role = TensorRole;
  for (const std::vector<Role>& group : {std::vector<Role>{Role::kQuery, Role::kKey, Role::kValue},
                                         {Role::kQueryBias, Role::kKeyBias, Role::kValueBias},
                                         {Role::kGate, Role::kUp}}) {
    if (std::find(group.begin(), group.end(), role) != group.end()) {
      return group;
    }
  }
  return {role};
}

// Returns where the rows of a tensor lie.
RowPlace place_of(const ModelSpec& spec, const TensorLayout& layout, const NeededTensor& need) {
  const auto name = [&](TensorRole role) { return layout.names[static_cast<std::size_t>(role)]; };
  const AttentionSpec& attention = spec.attention;
  RowPlace place{.block = need.rows, .stride = need.rows};
  for (const TensorRole role : fusable_with(need.role)) {
    if (name(role) != name(need.role) || (role == TensorRole::kGate && !spec.mlp.gated)) {
      continue;
    }
    const bool query = role == TensorRole::kQuery || role == TensorRole::kQueryBias;
    const std::int64_t rows = role == TensorRole::kGate || role == TensorRole::kUp ? spec.ffn
                              : fusable_with(role).size() == 1                     ? need.rows
                              : query ? std::int64_t{attention.heads} * attention.head_dim
                                      : std::int64_t{attention.kv_heads} * attention.head_dim;
    place.offset += role < need.role ? rows : 0;
    place.file_rows += rows;
  }
  if (layout.grouped_qkv && place.file_rows > need.rows) {
    place.stride = place.file_rows / attention.kv_heads;
    place.block = need.rows / attention.kv_heads;
    place.offset /= attention.kv_heads;
  }
  return place;
}

Result<StoredTensor> accept(const NeededTensor& need, const RowPlace& place, bool inputs_first,
                            const std::string& name, const FoundTensor& found) {
  if (!found.type) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: tensor {} is of type {}, which is not supported: convert the model to "
                      "F32, F16 or BF16, or as GGUF to Q8_0, a K type, IQ4_NL, IQ4_XS or MXFP4",
                      *found.file, name, found.type_name);
  }
  std::vector<std::int64_t> want = {place.file_rows};
  if (need.columns != 0) {
    want.insert(inputs_first ? want.begin() : want.end(), need.columns);
  }
  if (found.shape != want) {
    return make_error(
        ErrorCode::kCorrupt,
        "{}: tensor {} has shape [{}] where the config needs [{}]: config and weights "
        "are not of the same model",
        *found.file, name, fmt::join(found.shape, ", "), fmt::join(want, ", "));
  }
  StoredTensor stored{.type = *found.type, .data = found.bytes.data(), .place = place};
  stored.rows = need.columns == 0 ? 1 : need.rows;
  stored.columns = need.columns == 0 ? need.rows : need.columns;
  stored.inputs_first = inputs_first;
  const BlockFormat& format = block_format(stored.type);
  const std::int64_t elements = place.file_rows * std::max<std::int64_t>(need.columns, 1);
  check(found.shape.back() % format.elements == 0 &&
            std::ssize(found.bytes) == elements / format.elements * format.bytes,
        "a file reader has checked a tensor's size");
  if ((inputs_first || (need.columns == 0 && place.file_rows != need.rows)) &&
      format.elements != 1) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: tensor {} is of type {}, which is not supported for it: convert the "
                      "model to F32, F16 or BF16",
                      *found.file, name, found.type_name);
  }
  return stored;
}

// Returns "AWQ w4 g128", for people.
std::string type_name(const PackedCodes& packed) {
  const std::int64_t group = packed.how.group_of(packed.inputs);
  switch (packed.how.packing) {
    case CodePacking::kAwq:
      return fmt::format("AWQ w{} g{}", packed.how.bits, group);
    case CodePacking::kGptq:
      return fmt::format("GPTQ w{} g{}", packed.how.bits, group);
    case CodePacking::kRows:
      return fmt::format("compressed-tensors w{} g{}", packed.how.bits, group);
    case CodePacking::kSigned:
      return "compressed-tensors int8";
    case CodePacking::kFloat8:
      return "FP8 rounded to w8";
  }
  return {};
}

bool is_layer_matrix(const NeededTensor& need) {
  return need.columns != 0 && !is_outer(need.role);
}

// Returns the format of a matrix whose integers kernels can use unchanged.
std::optional<QuantFormat> kept_format(const StoredTensor& tensor) {
  if (!tensor.packed) {
    return code_format(tensor.type);
  }
  const PackedCodes& packed = *tensor.packed;
  if (packed.how.packing == CodePacking::kFloat8) {
    return std::nullopt;
  }
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
    if (tensor.rows == 1 && tensor.place.block == tensor.columns) {
      const BlockFormat& format = block_format(tensor.type);
      dequantize(tensor.type, tensor.data + tensor.place.offset * format.bytes / format.elements,
                 count * tensor.columns, out);
    } else {
      for_each_run(tensor, row, count, [&](std::int64_t from, std::int64_t rows, std::int64_t to) {
        read_run(tensor, from, rows, out + to * tensor.columns);
      });
    }
    for (std::int64_t i = 0; tensor.plus != 0.0F && i < count * tensor.columns; ++i) {
      out[i] += tensor.plus;
    }
  }

  std::optional<QuantFormat> stored_format(TensorRole role, int layer) const override {
    const StoredTensor& tensor = at(role, layer, 0, 0);
    if (is_outer(role) || tensor.rows == 1) {
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
    for_each_run(tensor, row, count, [&](std::int64_t from, std::int64_t rows, std::int64_t to) {
      const CodeRun run{matrix.codes.data() + to * tensor.columns,
                        matrix.scales.data() + to * matrix.groups(),
                        matrix.offsets.data() + to * matrix.groups()};
      if (tensor.packed) {
        read_codes(*tensor.packed, from, rows, run);
      } else {
        read_codes(tensor.type, tensor.data + from * row_bytes(tensor), rows * tensor.columns, run);
      }
    });
    return matrix;
  }

  Status unchanged() const override {
    return of_all_files([](const auto& file) { return file.unchanged(); });
  }
  Status current() const override {
    return of_all_files([](const auto& file) { return file.current(); });
  }

  void release(TensorRole role, int layer) const override {
    const StoredTensor& tensor = at(role, layer, 0, 0);
    if (!tensor.packed) {
      return release_pages({tensor.data, static_cast<std::size_t>(file_bytes(tensor))});
    }
    const PackedCodes& packed = *tensor.packed;
    const std::int64_t words = packed.inputs * packed.how.bits * packed.rows / 32;
    release_pages({packed.codes, static_cast<std::size_t>(words) * sizeof(std::uint32_t)});
  }

 private:
  template <class Ask>
  Status of_all_files(const Ask& ask) const {
    Status same = contents_.gguf ? ask(*contents_.gguf) : Status();
    for (auto file = contents_.safetensors.begin(); same && file != contents_.safetensors.end();
         ++file) {
      same = ask(*file);
    }
    return same;
  }

  // Calls call(first row in the file, rows, first row of the result) for rows that follow each
  // other.
  template <class Call>
  static void for_each_run(const StoredTensor& tensor, std::int64_t row, std::int64_t count,
                           const Call& call) {
    const RowPlace& place = tensor.place;
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t rows = std::min(count - done, place.block - (row + done) % place.block);
      call(place.of(row + done), rows, done);
      done += rows;
    }
  }

  static void read_run(const StoredTensor& tensor, std::int64_t from, std::int64_t rows,
                       float* out) {
    if (tensor.packed) {
      return dequantize(*tensor.packed, from, rows, out);
    }
    if (!tensor.inputs_first) {
      return dequantize(tensor.type, tensor.data + from * row_bytes(tensor), rows * tensor.columns,
                        out);
    }
    std::vector<float> column(static_cast<std::size_t>(rows));
    for (std::int64_t input = 0; input < tensor.columns; ++input) {
      const std::int64_t at = input * tensor.place.file_rows + from;
      dequantize(tensor.type, tensor.data + at * block_format(tensor.type).bytes, rows,
                 column.data());
      for (std::int64_t i = 0; i < rows; ++i) {
        out[i * tensor.columns + input] = column[static_cast<std::size_t>(i)];
      }
    }
  }

  static std::int64_t file_bytes(const StoredTensor& tensor) {
    const BlockFormat& format = block_format(tensor.type);
    const std::int64_t columns = tensor.rows == 1 ? 1 : tensor.columns;
    return tensor.place.file_rows * columns / format.elements * format.bytes;
  }

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

namespace {

// Finds a tensor by the first of its names that the checkpoint has.
Result<StoredTensor> find_stored(const NeededTensor& need, const RowPlace& place,
                                 const TensorLayout& layout, const FindTensor& find,
                                 const FindPacked& find_packed) {
  const auto names = alternatives(layout.names[static_cast<std::size_t>(need.role)]);
  const bool may_be_packed =
      find_packed && need.columns != 0 && need.role != TensorRole::kEmbedding;
  std::optional<Error> missing;
  for (const std::string_view pattern : names) {
    const std::string name = fmt::format(fmt::runtime(pattern), need.layer);
    if (may_be_packed) {
      Result<std::optional<PackedCodes>> packed = find_packed(name, place.file_rows, need.columns);
      if (!packed) {
        return packed.error();
      }
      if (packed->has_value()) {
        return StoredTensor{
            .rows = need.rows, .columns = need.columns, .packed = *packed, .place = place};
      }
    }
    const Result<FoundTensor> found = find(name);
    if (found) {
      const bool inputs_first = layout.inputs_first && need.columns != 0 && !is_outer(need.role);
      return accept(need, place, inputs_first, name, *found);
    }
    missing = missing ? missing : found.error();
  }
  return *missing;
}

// Warns if the checkpoint has a layer more, of which its norms at least have plain names: without
// its last layers a model answers nonsense.
void warn_of_further_layers(const ModelSpec& spec, const TensorLayout& layout,
                            const FindTensor& find) {
  for (const std::string_view names : layout.names) {
    for (const std::string_view pattern : alternatives(names)) {
      if (pattern.find("{}") == std::string_view::npos) {
        continue;
      }
      const auto found = find(fmt::format(fmt::runtime(pattern), spec.layers));
      if (found.ok()) {
        log::warning(
            "{}: its weights from layer {} on are not used: the model's config has {} layers",
            *found->file, spec.layers, spec.layers);
        return;
      }
    }
  }
}

}  // namespace

Result<TensorTable> collect_tensors(const ModelSpec& spec, const TensorLayout& layout,
                                    const FindTensor& find, const FindPacked& find_packed) {
  TensorTable table;
  table.tensors.resize(static_cast<std::size_t>(spec.layers) * kRoles);
  std::vector<std::string> types;
  for (const NeededTensor& need : needed_tensors(spec)) {
    Result<StoredTensor> stored =
        find_stored(need, place_of(spec, layout, need), layout, find, find_packed);
    if (!stored) {
      return stored.error();
    }
    stored->plus = layout.norms_less_one && is_norm(need.role) ? 1.0F : 0.0F;
    if (need.columns != 0) {
      std::string type = stored->packed ? type_name(*stored->packed)
                                        : std::string(block_format(stored->type).name);
      if (std::find(types.begin(), types.end(), type) == types.end()) {
        types.push_back(std::move(type));
      }
    }
    table.tensors[TensorTable::slot(need.role, need.layer)] = *stored;
  }
  table.types = fmt::format("{}", fmt::join(types, " and "));
  warn_of_further_layers(spec, layout, find);
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

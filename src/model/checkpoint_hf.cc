#include <algorithm>
#include <boost/json/object.hpp>
#include <cstring>
#include <map>
#include <system_error>
#include <utility>

#include "model/checkpoint_tensors.h"
#include "model/hf_config.h"
#include "model/json_file.h"
#include "model/quote.h"
#include "model/safetensors.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

// The weight files of a directory, and the file of each tensor according to the index.
struct WeightFiles {
  std::vector<SafetensorsFile> files;
  std::map<std::string, std::size_t, std::less<>> file_of_tensor;  // empty without an index
  std::string name;                                                // for messages

  std::string prefix;  // begins the decoder's tensor names, which are asked for without it

  bool has(std::string_view tensor) const {
    const std::string full = fmt::format("{}{}", prefix, tensor);
    return file_of_tensor.empty() ? files.front().find_tensor(full) != nullptr
                                  : file_of_tensor.contains(full);
  }
  Result<FoundTensor> find(const std::string& unprefixed) const;

  // Finds the prefix of the decoder in a model that also reads pictures, by its embedding matrix.
  void find_decoder(const std::string& embedding) {
    prefix = "language_model.";
    if (!has(embedding)) {
      prefix.clear();
    }
  }
};

std::optional<TensorType> readable_type(std::string_view type) {
  for (const TensorType readable : {TensorType::kF32, TensorType::kF16, TensorType::kBf16}) {
    if (block_format(readable).name == type) {
      return readable;
    }
  }
  return std::nullopt;
}

Result<FoundTensor> WeightFiles::find(const std::string& unprefixed) const {
  const std::string tensor = prefix + unprefixed;
  std::size_t file = 0;
  if (!file_of_tensor.empty()) {
    const auto found = file_of_tensor.find(tensor);
    if (found == file_of_tensor.end()) {
      return make_error(ErrorCode::kNotFound,
                        "{}: tensor {} is missing: the weights are incomplete or of another model",
                        name, tensor);
    }
    file = found->second;
  }
  const SafetensorsTensor* stored = files[file].find_tensor(tensor);
  if (stored == nullptr) {
    return make_error(ErrorCode::kNotFound,
                      "{}: tensor {} is missing: the weights are incomplete or of another model",
                      files[file].name(), tensor);
  }
  return FoundTensor{stored->type, readable_type(stored->type), stored->shape, stored->bytes,
                     &files[file].name()};
}

// A tensor of a packed matrix: the end of its name, and the type and shape that it must have.
struct PackedTensor {
  std::string_view ending;
  std::string_view type;  // empty: any float
  std::vector<std::int64_t> shape;
};

Result<FoundTensor> find_packed_tensor(const WeightFiles& weights, const std::string& stem,
                                       const PackedTensor& tensor) {
  const std::string name = fmt::format("{}.{}", stem, tensor.ending);
  Result<FoundTensor> found = weights.find(name);
  if (!found) {
    return found;
  }
  const bool right_type =
      tensor.type.empty() ? found->type.has_value() : found->type_name == tensor.type;
  if (!right_type || found->shape != tensor.shape) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: tensor {} is {} of shape [{}] where the config needs {} of [{}]: config "
                      "and weights are not of the same model",
                      *found->file, name, found->type_name, fmt::join(found->shape, ", "),
                      tensor.type.empty() ? "F16" : tensor.type, fmt::join(tensor.shape, ", "));
  }
  return found;
}

// Finds GPTQ's g_idx, or weight_g_idx, which names the group of each input. Returns null if groups
// are consecutive inputs.
Result<const std::byte*> find_group_index(const WeightFiles& weights, const std::string& stem,
                                          const PackedCodes& packed) {
  const std::string ending = packed.how.packing == CodePacking::kRows ? "weight_g_idx" : "g_idx";
  if (packed.how.packing == CodePacking::kAwq || !weights.has(fmt::format("{}.{}", stem, ending))) {
    return nullptr;
  }
  const auto found = find_packed_tensor(weights, stem, {ending, "I32", {packed.inputs}});
  if (!found) {
    return found.error();
  }
  bool in_order = true;
  for (std::int64_t input = 0; input < packed.inputs; ++input) {
    std::int32_t group = 0;
    std::memcpy(&group, found->bytes.data() + input * std::int64_t{sizeof(group)}, sizeof(group));
    if (group < 0 || group >= packed.how.groups(packed.inputs)) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: tensor {}.{} puts input {} into group {} of {}: the file is "
                        "damaged, download it again",
                        *found->file, stem, ending, input, group, packed.how.groups(packed.inputs));
    }
    in_order = in_order && group == input / packed.how.group_of(packed.inputs);
  }
  return in_order ? nullptr : found->bytes.data();
}

// Returns the scales of a matrix that is stored row after row, and their type.
Result<FoundTensor> find_row_scales(const WeightFiles& weights, const std::string& stem,
                                    const PackedCodes& packed) {
  const bool inverse = weights.has(stem + ".weight_scale_inv");  // a factor, in spite of its name
  const std::string ending = inverse ? "weight_scale_inv" : "weight_scale";
  Result<FoundTensor> found = weights.find(fmt::format("{}.{}", stem, ending));
  if (!found) {
    return found;
  }
  const std::int64_t rows = packed.how.scale_rows(packed.rows);
  const std::int64_t groups = packed.how.groups(packed.inputs);
  // One scale may have no dimension, and one for each row may have one dimension.
  std::vector<std::int64_t> shape = found->shape;
  if (shape.size() < 2) {
    shape = {shape.empty() ? 1 : shape[0], 1};
  }
  if (!found->type || shape != std::vector<std::int64_t>{rows, groups}) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: tensor {}.{} is {} of shape [{}] where the config needs floats of [{}, "
                      "{}]: config and weights are not of the same model",
                      *found->file, stem, ending, found->type_name, fmt::join(found->shape, ", "),
                      rows, groups);
  }
  return found;
}

// Finds a matrix whose codes are stored row after row. A matrix without scales is a plain one.
Result<std::optional<PackedCodes>> find_row_codes(const WeightFiles& weights,
                                                  const WeightQuantization& how,
                                                  const std::string& stem,
                                                  const NeededTensor& need) {
  const bool in_words = how.packing == CodePacking::kRows;
  if (!weights.has(stem + ".weight_scale") && !weights.has(stem + ".weight_scale_inv")) {
    return std::optional<PackedCodes>();
  }
  if (in_words && (need.columns * how.bits % 32 != 0)) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: tensor {}.weight_packed: rows of {} codes of {} bits do not fill 32-bit "
                      "words",
                      weights.name, stem, need.columns, how.bits);
  }
  PackedCodes packed{.how = how, .rows = need.rows, .inputs = need.columns};
  const std::string_view type = in_words                              ? "I32"
                                : how.packing == CodePacking::kSigned ? "I8"
                                                                      : "F8_E4M3";
  const auto codes =
      find_packed_tensor(weights, stem,
                         {in_words ? "weight_packed" : "weight",
                          type,
                          {need.rows, in_words ? need.columns * how.bits / 32 : need.columns}});
  if (!codes) {
    return codes.error();
  }
  const auto scales = find_row_scales(weights, stem, packed);
  if (!scales) {
    return scales.error();
  }
  packed.codes = codes->bytes.data();
  packed.scales = scales->bytes.data();
  packed.scale_type = *scales->type;
  if (in_words && weights.has(stem + ".weight_zero_point")) {
    const auto zeros = find_packed_tensor(
        weights, stem,
        {"weight_zero_point", "I32", {need.rows * how.bits / 32, how.groups(need.columns)}});
    if (!zeros) {
      return zeros.error();
    }
    packed.zeros = zeros->bytes.data();
  }
  const auto index = find_group_index(weights, stem, packed);
  if (!index) {
    return index.error();
  }
  packed.group_index = *index;
  return std::optional(packed);
}

// Finds a packed matrix: the file has a ".qweight" in place of the ".weight".
Result<std::optional<PackedCodes>> find_packed(const WeightFiles& weights,
                                               const WeightQuantization& how,
                                               const std::string& name, const NeededTensor& need) {
  const std::string stem = name.substr(0, name.rfind('.'));
  if (how.row_after_row()) {
    return find_row_codes(weights, how, stem, need);
  }
  if (!weights.has(stem + ".qweight")) {
    return std::optional<PackedCodes>();
  }
  const auto shape = packed_shape(how, need.rows, need.columns);
  if (!shape) {
    return make_error(shape.error().code, "{}: tensor {}.qweight: {}", weights.name, stem,
                      shape.error().message);
  }
  PackedCodes packed{.how = how, .rows = need.rows, .inputs = need.columns};
  const std::int64_t groups = how.groups(need.columns);
  const auto codes = find_packed_tensor(
      weights, stem, {"qweight", "I32", {shape->code_rows, shape->code_columns}});
  const auto zeros =
      find_packed_tensor(weights, stem, {"qzeros", "I32", {groups, shape->zero_columns}});
  const auto scales = find_packed_tensor(weights, stem, {"scales", "", {groups, need.rows}});
  for (const auto* tensor : {&codes, &zeros, &scales}) {
    if (!*tensor) {
      return tensor->error();
    }
  }
  packed.codes = codes->bytes.data();
  packed.zeros = zeros->bytes.data();
  packed.scales = scales->bytes.data();
  packed.scale_type = *scales->type;
  const auto index = find_group_index(weights, stem, packed);
  if (!index) {
    return index.error();
  }
  packed.group_index = *index;
  return std::optional(packed);
}

std::vector<std::string> names_ending(const fs::path& directory, std::string_view ending) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const std::string name = entry->path().filename().string(); name.ends_with(ending)) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Error no_weights(const fs::path& directory) {
  for (const std::string_view ending : {".bin", ".pt", ".pth", ".ckpt"}) {
    if (const auto names = names_ending(directory, ending); !names.empty()) {
      return make_error(ErrorCode::kUnsupported,
                        "{} has its weights in {} only: pickles can run code and are not read, "
                        "convert them to safetensors",
                        directory.string(), quote(names.front()));
    }
  }
  return make_error(ErrorCode::kNotFound,
                    "{} has no model.safetensors and no model.safetensors.index.json: download the "
                    "model's weights into it",
                    directory.string());
}

Result<WeightFiles> open_single(const fs::path& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) {
    return file.error();
  }
  WeightFiles weights;
  weights.name = path.string();
  weights.files.push_back(std::move(*file));
  return weights;
}

// Opens the files that an index names. They must lie in the index's directory; a name that leads
// elsewhere is refused.
Result<WeightFiles> open_indexed(const fs::path& index) {
  const auto object = read_json_file(index);
  if (!object) {
    return object.error();
  }
  WeightFiles weights;
  weights.name = index.string();
  const boost::json::value* map = object->if_contains("weight_map");
  if (map == nullptr || !map->is_object() || map->get_object().empty()) {
    return make_error(ErrorCode::kCorrupt, "{} has no \"weight_map\": download it again",
                      weights.name);
  }
  std::map<std::string, std::size_t, std::less<>> opened;
  for (const auto& member : map->get_object()) {
    const boost::json::string* text = member.value().if_string();
    const std::string file(text == nullptr ? std::string_view() : std::string_view(*text));
    if (!file.ends_with(".safetensors") || file.find('/') != std::string::npos) {
      return make_error(ErrorCode::kCorrupt,
                        "{} puts tensor {} into {}, which is no .safetensors file in its folder: "
                        "download it again",
                        weights.name, quote(member.key()), quote(file));
    }
    const auto [entry, is_new] = opened.emplace(file, weights.files.size());
    if (is_new) {
      Result<SafetensorsFile> weight_file = SafetensorsFile::open(index.parent_path() / file);
      if (!weight_file) {
        return weight_file.error();
      }
      weights.files.push_back(std::move(*weight_file));
    }
    weights.file_of_tensor.emplace(std::string(member.key()), entry->second);
  }
  return weights;
}

Result<WeightFiles> open_weight_files(const fs::path& directory) {
  std::error_code ignored;
  if (fs::exists(directory / "model.safetensors", ignored)) {
    return open_single(directory / "model.safetensors");
  }
  if (fs::exists(directory / "model.safetensors.index.json", ignored)) {
    return open_indexed(directory / "model.safetensors.index.json");
  }
  if (const auto names = names_ending(directory, ".safetensors"); names.size() == 1) {
    return open_single(directory / names.front());
  }
  return no_weights(directory);
}

// Makes a checkpoint of a config and its weight files.
Result<std::unique_ptr<Checkpoint>> assemble(HfConfig config, WeightFiles weights) {
  CheckpointContents contents{.spec = std::move(config.spec),
                              .generation = std::move(config.generation)};
  const TensorLayout& layout = *config.row->hf_tensors;
  std::string embedding;
  for (const std::string_view name :
       alternatives(layout.names[static_cast<std::size_t>(TensorRole::kEmbedding)])) {
    embedding = weights.has(embedding) ? embedding : name;
  }
  weights.find_decoder(embedding);
  const std::string output = tensor_name(layout.names, TensorRole::kOutput, 0);
  contents.spec.output_bias = weights.has(tensor_name(layout.names, TensorRole::kOutputBias, 0));
  // Some tied checkpoints say that they are not tied; a missing LM head shows that they are. Of two
  // equal tensors the file may hold either.
  const std::string output_stem = output.substr(0, output.rfind('.'));
  const bool packed_output =
      weights.has(output_stem + ".qweight") || weights.has(output_stem + ".weight_packed");
  contents.spec.tied_embeddings |= !weights.has(output) && !packed_output;
  const bool renamed = contents.spec.tied_embeddings && !weights.has(embedding);
  FindPacked packed;
  if (config.quantization) {
    packed = [&](const std::string& name, std::int64_t rows, std::int64_t inputs) {
      return find_packed(weights, *config.quantization, name, {.rows = rows, .columns = inputs});
    };
  }
  const auto find = [&](const std::string& name) {
    return weights.find(renamed && name == embedding && weights.has(output) ? output : name);
  };
  auto table = collect_tensors(contents.spec, layout, find, packed);
  if (!table) {
    return table.error();
  }
  contents.table = std::move(*table);
  contents.safetensors = std::move(weights.files);
  contents.description =
      fmt::format("safetensors, {} file{}, {}", contents.safetensors.size(),
                  contents.safetensors.size() == 1 ? "" : "s", contents.table.types);
  return make_checkpoint(std::move(contents));
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::exists(directory / "config.json", ignored)) {
    const auto ggufs = names_ending(directory, ".gguf");
    return make_error(ErrorCode::kNotFound, "{} has no config.json: {}", directory.string(),
                      ggufs.empty() ? "give the directory of a Hugging Face model or a .gguf file"
                                    : fmt::format("give the file {} itself",
                                                  (directory / ggufs.front()).string()));
  }
  Result<HfConfig> config = read_hf_config(directory);
  if (!config) {
    return config.error();
  }
  Result<WeightFiles> weights = open_weight_files(directory);
  if (!weights) {
    return weights.error();
  }
  return assemble(std::move(*config), std::move(*weights));
}

Result<std::unique_ptr<Checkpoint>> open_hf_checkpoint(HfConfig config, SafetensorsFile file) {
  WeightFiles weights{.name = file.name()};
  weights.files.push_back(std::move(file));
  return assemble(std::move(config), std::move(weights));
}

}  // namespace protean

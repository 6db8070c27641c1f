#include <algorithm>
#include <boost/json/object.hpp>
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

// A directory's weights: its files, and which of them an index says a tensor is in.
struct Shards {
  std::vector<SafetensorsFile> files;
  std::map<std::string, std::size_t, std::less<>> file_of_tensor;  // empty without an index
  std::string name;                                                // for messages

  bool has(std::string_view tensor) const {
    return file_of_tensor.empty() ? files.front().find_tensor(tensor) != nullptr
                                  : file_of_tensor.contains(tensor);
  }
  Result<FoundTensor> find(const std::string& tensor) const;
};

std::optional<TensorType> readable_type(std::string_view type) {
  for (const TensorType readable : {TensorType::kF32, TensorType::kF16, TensorType::kBf16}) {
    if (block_format(readable).name == type) {
      return readable;
    }
  }
  return std::nullopt;
}

Result<FoundTensor> Shards::find(const std::string& tensor) const {
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

Result<Shards> open_single(const fs::path& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) {
    return file.error();
  }
  Shards shards;
  shards.name = path.string();
  shards.files.push_back(std::move(*file));
  return shards;
}

// Shards lie beside their index; a name that leads elsewhere is not followed.
Result<Shards> open_indexed(const fs::path& index) {
  const auto object = read_json_file(index);
  if (!object) {
    return object.error();
  }
  Shards shards;
  shards.name = index.string();
  const boost::json::value* map = object->if_contains("weight_map");
  if (map == nullptr || !map->is_object() || map->get_object().empty()) {
    return make_error(ErrorCode::kCorrupt, "{} has no \"weight_map\": download it again",
                      shards.name);
  }
  std::map<std::string, std::size_t, std::less<>> opened;
  for (const auto& member : map->get_object()) {
    const boost::json::string* text = member.value().if_string();
    const std::string file(text == nullptr ? std::string_view() : std::string_view(*text));
    if (!file.ends_with(".safetensors") || file.find('/') != std::string::npos) {
      return make_error(ErrorCode::kCorrupt,
                        "{} puts tensor {} into {}, which is no .safetensors file beside it: "
                        "download it again",
                        shards.name, quote(member.key()), quote(file));
    }
    const auto [entry, is_new] = opened.emplace(file, shards.files.size());
    if (is_new) {
      Result<SafetensorsFile> shard = SafetensorsFile::open(index.parent_path() / file);
      if (!shard) {
        return shard.error();
      }
      shards.files.push_back(std::move(*shard));
    }
    shards.file_of_tensor.emplace(std::string(member.key()), entry->second);
  }
  return shards;
}

Result<Shards> open_shards(const fs::path& directory) {
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
  Result<Shards> shards = open_shards(directory);
  if (!shards) {
    return shards.error();
  }
  CheckpointParts parts{.spec = std::move(config->spec),
                        .generation = std::move(config->generation)};
  const TensorNames& names = *config->row->hf_tensors;
  const std::string embedding = tensor_name(names, TensorRole::kEmbedding, 0);
  const std::string output = tensor_name(names, TensorRole::kOutput, 0);
  // Some tied checkpoints say they are not, but without a second table there is nothing else. And
  // savers that keep one of two equal tensors may keep either.
  parts.spec.tied_embeddings |= !shards->has(output);
  const bool renamed = parts.spec.tied_embeddings && !shards->has(embedding);
  auto table = collect_tensors(parts.spec, names, [&](const std::string& name) {
    return shards->find(renamed && name == embedding && shards->has(output) ? output : name);
  });
  if (!table) {
    return table.error();
  }
  parts.table = std::move(*table);
  parts.safetensors = std::move(shards->files);
  parts.description = fmt::format("safetensors, {} file{}, {}", parts.safetensors.size(),
                                  parts.safetensors.size() == 1 ? "" : "s", parts.table.types);
  return make_checkpoint(std::move(parts));
}

}  // namespace protean

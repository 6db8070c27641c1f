#include "hub/needed_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cctype>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <set>

#include "hub/repo_listing.h"

namespace protean::hub {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

using Paths = std::vector<std::string>;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kWeights = "model.safetensors";

// Files of a safetensors model other than its weights.
constexpr std::array<std::string_view, 14> kTexts = {kConfig,
                                                     kIndex,
                                                     "generation_config.json",
                                                     "quantize_config.json",
                                                     "quant_config.json",
                                                     "tokenizer.json",
                                                     "tokenizer.model",
                                                     "tokenizer_config.json",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "vocab.json",
                                                     "merges.txt",
                                                     "chat_template.jinja",
                                                     "chat_template.json"};

std::string lower(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

std::string base_name(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

bool is_gguf(std::string_view path) {
  return lower(path).ends_with(".gguf");
}

bool contains(const Paths& paths, std::string_view path) {
  return std::find(paths.begin(), paths.end(), path) != paths.end();
}

// A GGUF's name, which may be that of a part, such as "x-00001-of-00003.gguf".
struct GgufName {
  std::string stem;  // the path without part and ending
  int part = 1;
  int parts = 1;

  std::string of_part(int which) const {
    return parts == 1 ? stem + ".gguf" : fmt::format("{}-{:05}-of-{:05}.gguf", stem, which, parts);
  }
};

GgufName parse_gguf_name(std::string_view path) {
  const std::string stem(path.substr(0, path.size() - 5));
  constexpr std::string_view kPattern = "-00001-of-00001";
  const std::size_t end_at = stem.size() - std::min(stem.size(), kPattern.size());
  const std::string_view end = std::string_view(stem).substr(end_at);
  bool matches = stem.size() > kPattern.size();
  for (std::size_t i = 0; matches && i < end.size(); ++i) {
    const bool is_digit = end[i] >= '0' && end[i] <= '9';
    matches = kPattern[i] == '0' || kPattern[i] == '1' ? is_digit : end[i] == kPattern[i];
  }
  if (!matches) {
    return {.stem = stem};
  }
  return {stem.substr(0, end_at), std::stoi(std::string(end.substr(1, 5))),
          std::max(1, std::stoi(std::string(end.substr(end.size() - 5))))};
}

// A projector or an importance matrix: not a language model.
bool is_companion(std::string_view path) {
  const std::string name = lower(base_name(path));
  return name.starts_with("mmproj") || name.find("imatrix") != name.npos;
}

// Returns the GGUFs that are language models, by their first part if they are split.
Paths language_models(const Paths& paths) {
  Paths found;
  std::copy_if(paths.begin(), paths.end(), std::back_inserter(found), [](const std::string& path) {
    return is_gguf(path) && !is_companion(path) && parse_gguf_name(path).part == 1;
  });
  std::sort(found.begin(), found.end());
  return found;
}

// True if the GGUF's name without ending is `tag`, or ends with it behind a '-', '.' or '_'.
bool has_tag(std::string_view path, std::string_view tag) {
  const std::string stem = lower(base_name(parse_gguf_name(path).stem));
  const std::string wanted = lower(tag);
  if (!stem.ends_with(wanted)) {
    return false;
  }
  const std::size_t before = stem.size() - wanted.size();
  return before == 0 || std::string_view("-._").find(stem[before - 1]) != std::string_view::npos;
}

std::string list_of(const Paths& names) {
  constexpr std::size_t kMostNames = 12;
  const Paths first(names.begin(), names.begin() + std::min(names.size(), kMostNames));
  return fmt::format("{}{}", fmt::join(first, ", "), names.size() > kMostNames ? ", ..." : "");
}

Result<std::string> choose_gguf(const ModelName& name, const Paths& paths) {
  const Paths models = language_models(paths);
  if (models.empty()) {
    return make_error(ErrorCode::kNotFound, "{} has no GGUF: leave out ':{}'", name.repo,
                      name.file);
  }
  Paths found;
  for (const std::string& path : models) {
    if (path == name.file || base_name(path) == name.file) {
      return path;
    }
    if (has_tag(path, name.file)) {
      found.push_back(path);
    }
  }
  if (found.empty()) {
    return make_error(ErrorCode::kNotFound, "{} has no GGUF called {}; it has {}", name.repo,
                      name.file, list_of(models));
  }
  // "NAME-Q4_K_M.gguf" rather than "NAME-UD-Q4_K_M.gguf".
  const auto shorter = [](const std::string& a, const std::string& b) {
    return a.size() < b.size();
  };
  const std::string shortest = *std::min_element(found.begin(), found.end(), shorter);
  const auto as_short = [&](const std::string& path) { return path.size() == shortest.size(); };
  if (std::count_if(found.begin(), found.end(), as_short) > 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}:{} is several files: {}; write the name of one after ':'", name.repo,
                      name.file, list_of(found));
  }
  return shortest;
}

Paths parts_of(const std::string& gguf) {
  const GgufName name = parse_gguf_name(gguf);
  if (name.parts == 1) {
    return {gguf};
  }
  Paths files;
  for (int part = 1; part <= name.parts; ++part) {
    files.push_back(name.of_part(part));
  }
  return files;
}

Result<Paths> needed_gguf(const ModelName& name, const Paths& paths) {
  const auto chosen = choose_gguf(name, paths);
  if (!chosen.ok()) {
    return chosen.error();
  }
  Paths files = parts_of(*chosen);
  const auto lacks = [&](const std::string& path) { return !contains(paths, path); };
  if (const auto missing = std::find_if(files.begin(), files.end(), lacks);
      missing != files.end()) {
    return make_error(ErrorCode::kNotFound, "{} of {} is split, and {} is not there", *chosen,
                      name.repo, *missing);
  }
  return files;
}

Paths texts_in(const Paths& paths) {
  Paths texts;
  for (const std::string_view text : kTexts) {
    if (contains(paths, text)) {
      texts.emplace_back(text);
    }
  }
  return texts;
}

// The weights among the files of a folder: model.safetensors, or the shards of an index. Of a model
// that is there twice, as Mistral's are, leaves out the copy in another layout.
Paths weights_in(const Paths& paths) {
  if (!contains(paths, kIndex)) {
    return contains(paths, kWeights) ? Paths{std::string(kWeights)} : Paths{};
  }
  Paths shards, others;
  for (const std::string& path : paths) {
    if (path.find('/') != path.npos || !path.ends_with(".safetensors")) {
      continue;
    }
    if (path.starts_with("model-") && path.find("-of-") != path.npos) {
      shards.push_back(path);
    } else if (!path.starts_with("consolidated")) {
      others.push_back(path);
    }
  }
  return shards.empty() ? others : shards;
}

Error no_model(const ModelName& name, const Paths& paths) {
  if (const Paths models = language_models(paths); !models.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} has several models: choose one, such as {}:{}; it has {}", name.repo,
                      name.repo, base_name(models.front()), list_of(models));
  }
  const bool pickled = std::any_of(paths.begin(), paths.end(), [](const std::string& path) {
    return path.ends_with(".bin") || path.ends_with(".pt") || path.ends_with(".pth");
  });
  return make_error(
      ErrorCode::kUnsupported, "{} has no config.json with *.safetensors and no GGUF{}", name.repo,
      pickled ? ": its weights are pickles, which can run code and are not read" : "");
}

// All files in a folder and below, relative to it, links that lead nowhere left out.
Paths files_below(const fs::path& folder) {
  Paths paths;
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::error_code ignored;
    if (fs::is_regular_file(entry->path(), ignored)) {
      paths.push_back(entry->path().lexically_relative(folder).string());
    }
  }
  return paths;
}

bool has_tokenizer(const Paths& paths) {
  return contains(paths, "tokenizer.json") || contains(paths, "tokenizer.model") ||
         (contains(paths, "vocab.json") && contains(paths, "merges.txt"));
}

}  // namespace

Result<std::vector<std::string>> needed_files(const ModelName& name,
                                              const std::vector<std::string>& paths) {
  if (!name.file.empty()) {
    return needed_gguf(name, paths);
  }
  const Paths weights = weights_in(paths);
  if (!contains(paths, kConfig) || weights.empty()) {
    const Paths models = language_models(paths);
    if (models.size() != 1) {
      return no_model(name, paths);
    }
    return needed_gguf({.repo = name.repo, .file = models.front()}, paths);
  }
  if (!has_tokenizer(paths)) {
    return make_error(ErrorCode::kNotFound,
                      "{} has no tokenizer (tokenizer.json, tokenizer.model, or vocab.json with "
                      "merges.txt): choose a repository that has one",
                      name.repo);
  }
  Paths needed = texts_in(paths);
  needed.insert(needed.end(), weights.begin(), weights.end());
  return needed;
}

Result<std::vector<std::string>> files_of_index(std::string_view text) {
  boost::system::error_code failed;
  const json::value document = json::parse({text.data(), text.size()}, failed);
  const json::object* object = failed ? nullptr : document.if_object();
  const json::value* map = object == nullptr ? nullptr : object->if_contains("weight_map");
  std::set<std::string> names;
  if (map == nullptr || !map->is_object()) {
    return make_error(ErrorCode::kCorrupt, "{} has no 'weight_map'", kIndex);
  }
  for (const auto& member : map->get_object()) {
    const json::string* file = member.value().if_string();
    if (file == nullptr || !is_safe_path({file->data(), file->size()})) {
      return make_error(ErrorCode::kCorrupt, "{} names a file that is not in its folder", kIndex);
    }
    names.emplace(file->data(), file->size());
  }
  return Paths(names.begin(), names.end());
}

Result<LocalModel> look_into_snapshot(const ModelName& name, const fs::path& snapshot) {
  const Paths paths = files_below(snapshot);
  const Paths models = language_models(paths);
  if (!name.file.empty() || (weights_in(paths).empty() && models.size() == 1)) {
    const ModelName wanted{.repo = name.repo, .file = name.file.empty() ? models[0] : name.file};
    const auto chosen = choose_gguf(wanted, paths);
    if (!chosen.ok()) {
      return LocalModel{snapshot, {wanted.file}};
    }
    LocalModel model{snapshot / *chosen, {}};
    const Paths files = parts_of(*chosen);
    std::copy_if(files.begin(), files.end(), std::back_inserter(model.missing),
                 [&](const std::string& path) { return !contains(paths, path); });
    return model;
  }
  LocalModel model{.path = snapshot, .missing = {}};
  if (!contains(paths, kConfig)) {
    model.missing.emplace_back(kConfig);
  }
  if (!has_tokenizer(paths)) {
    model.missing.emplace_back("tokenizer.json");
  }
  Paths weights = weights_in(paths);
  if (contains(paths, kIndex)) {
    std::ifstream file(snapshot / kIndex, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    auto shards = files_of_index(text);
    if (!shards.ok()) {
      return make_error(shards.error().code, "{}: {}", snapshot.string(), shards.error().message);
    }
    weights = *std::move(shards);
  } else if (weights.empty()) {
    weights.emplace_back(kWeights);
  }
  std::copy_if(weights.begin(), weights.end(), std::back_inserter(model.missing),
               [&](const std::string& path) { return !contains(paths, path); });
  return model;
}

}  // namespace protean::hub

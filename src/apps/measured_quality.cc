#include "apps/measured_quality.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <filesystem>
#include <string_view>

#include "apps/version.h"
#include "cost/pruned_spec.h"
#include "model/json_file.h"
#include "model/profile_database.h"
#include "replica/step_costs.h"

namespace protean {
namespace {

namespace json = boost::json;

// Returns the precision of all halves of all layers; nothing if they differ.
std::optional<Precision> common_precision(const Form& form) {
  const Precision first = form.layer_precision.front().attention;
  const bool same = std::all_of(
      form.layer_precision.begin(), form.layer_precision.end(),
      [&](const LayerPrecision& one) { return one.attention == first && one.mlp == first; });
  return same ? std::optional(first) : std::nullopt;
}

// Returns the method by which a checkpoint's weights were rounded, as its config.json says; nothing
// if it does not say.
std::optional<WeightMethod> stored_method(const std::filesystem::path& path) {
  const auto config = read_json_file(path / "config.json");
  const json::value* found = config.ok() ? config->if_contains("quantization_config") : nullptr;
  const json::value* named = found != nullptr && found->is_object()
                                 ? found->as_object().if_contains("quant_method")
                                 : nullptr;
  const std::string_view name =
      named != nullptr && named->is_string() ? std::string_view(named->get_string()) : "";
  return name == "gptq"  ? std::optional(WeightMethod::kGptq)
         : name == "awq" ? std::optional(WeightMethod::kAwq)
                         : std::nullopt;
}

bool same_sizes(const ModelSpec& one, const ModelSpec& other) {
  return one.layers == other.layers && one.hidden == other.hidden && one.ffn == other.ffn &&
         one.vocab == other.vocab && one.attention.heads == other.attention.heads &&
         one.attention.kv_heads == other.attention.kv_heads &&
         one.attention.head_dim == other.attention.head_dim;
}

// Returns the structured pruning of the reference that leaves these sizes.
std::optional<Pruning> structured_pruning(const ModelSpec& left, const ModelSpec& reference) {
  for (int percent = 1; percent < 100; ++percent) {
    const Pruning pruning{.kind = PruningKind::kStructured, .percent = percent};
    if (same_sizes(left, pruned_spec(reference, pruning))) {
      return pruning;
    }
  }
  return std::nullopt;
}

// Returns true if both store the model alike. Shares of weights that structured pruning removes are
// rounded to whole heads and neurons, so that several leave the same.
bool stores_alike(const ModelSpec& spec, const Configuration& one, const Configuration& other) {
  return one.weights == other.weights && one.method == other.method && one.kv == other.kv &&
         one.pruning.kind == other.pruning.kind &&
         same_sizes(pruned_spec(spec, one.pruning), pruned_spec(spec, other.pruning));
}

}  // namespace

std::optional<Configuration> stored_as(const MeasuredForm& measured,
                                       const MeasuredForm& reference) {
  const auto stored = common_precision(measured.form);
  const auto full = common_precision(reference.form);
  if (!stored || !full || full->quantised() || *full == Precision::kS24) {
    return std::nullopt;
  }
  Configuration found{.weights = *stored, .kv = measured.form.kv.precision};
  if (*stored == Precision::kS24) {
    found.weights = Precision::kBf16;
    found.pruning = {.kind = PruningKind::kTwoOfFour};
  }
  std::error_code unknown;
  const bool same_model = std::filesystem::equivalent(measured.path, reference.path, unknown);
  const Precision own = measured.spec.stored.precision;
  const bool smaller = !same_sizes(measured.spec, reference.spec);
  if (!same_model && !own.quantised() && own != Precision::kS24 && !smaller) {
    return std::nullopt;  // another model, such as one that was trained further
  }
  if (own.quantised()) {
    const auto method = stored_method(measured.path);
    if (!method) {
      return std::nullopt;
    }
    found.method = *method;
  }
  if (smaller) {
    const auto pruning = structured_pruning(measured.spec, reference.spec);
    if (!pruning || found.pruning != Pruning()) {
      return std::nullopt;
    }
    found.pruning = *pruning;
  }
  return found;
}

Status keep_quality(const MeasuredForm& measured, const MeasuredForm& reference,
                    double perplexity_ratio, const std::filesystem::path& folder) {
  const auto stored = stored_as(measured, reference);
  if (!stored) {
    return {};
  }
  const auto model = identify_model(reference.path, reference.spec);
  if (!model.ok()) {
    return model.error();
  }
  const auto database =
      ProfileDatabase::open(profile_directory({.directory = folder, .version = kVersion}));
  return database.ok() ? (*database)->save_quality(model->hex(), *stored, perplexity_ratio)
                       : Status(database.error());
}

std::vector<std::optional<double>> measured_ratios(
    const MappedModel& model, std::span<const EstimatedConfiguration> candidates,
    const std::filesystem::path& folder) {
  std::vector<std::optional<double>> ratios(candidates.size());
  const std::filesystem::path directory =
      profile_directory({.directory = folder, .version = kVersion});
  if (!ProfileDatabase::exists(directory)) {
    return ratios;
  }
  const auto database = ProfileDatabase::open(directory);
  const auto measured = database.ok() ? (*database)->qualities(model.identity)
                                      : Result<std::vector<MeasuredQuality>>(database.error());
  for (std::size_t i = 0; measured.ok() && i < ratios.size(); ++i) {
    for (const MeasuredQuality& one : *measured) {
      if (stores_alike(model.spec, one.configuration, candidates[i].configuration)) {
        ratios[i] = one.perplexity_ratio;
      }
    }
  }
  return ratios;
}

}  // namespace protean

#include "model/step_cost_file.h"

#include <algorithm>
#include <array>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "model/json_file.h"

namespace protean {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr std::int64_t kStepCostFormat = 2;

template <class T>
using Fields = std::span<const std::pair<const char*, double T::*>>;

constexpr std::array<std::pair<const char*, double StepCost::*>, 5> kStepFields = {
    {{"fixed_us", &StepCost::fixed_us},
     {"token_us", &StepCost::token_us},
     {"context_token_us", &StepCost::context_token_us},
     {"sequence_us", &StepCost::sequence_us},
     {"kv_token_us", &StepCost::kv_token_us}}};

constexpr std::array<std::pair<const char*, double LayersCost::*>, 6> kLayersFields = {
    {{"step_us", &LayersCost::step_us},
     {"token_us", &LayersCost::token_us},
     {"more_token_us", &LayersCost::more_token_us},
     {"tile_us", &LayersCost::tile_us},
     {"bend_tokens", &LayersCost::bend_tokens},
     {"tile_tokens", &LayersCost::tile_tokens}}};

constexpr std::array<std::pair<const char*, double LogitsCost::*>, 2> kLogitsFields = {
    {{"step_us", &LogitsCost::step_us}, {"row_us", &LogitsCost::row_us}}};

template <class T>
json::object write_fields(const T& from, Fields<T> fields) {
  json::object object;
  for (const auto& [name, field] : fields) {
    object[name] = from.*field;
  }
  return object;
}

// Returns false if a field is missing, or is not a possible time.
template <class T>
bool read_fields(const json::object& object, Fields<T> fields, T& into) {
  for (const auto& [name, field] : fields) {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_number()) {
      return false;
    }
    into.*field = value->to_number<double>();
    if (!std::isfinite(into.*field) || into.*field < 0) {
      return false;
    }
  }
  return true;
}

// Reads the object of this name, which has a member for each precision. Returns false if there is
// none, or it is not such an object.
template <class T>
bool read_by_precision(const json::object& object, std::string_view name, Fields<T> fields,
                       std::array<T, kPrecisions.size()>& into) {
  const json::value* all = object.if_contains(name);
  if (all == nullptr || !all->is_object() || all->get_object().empty()) {
    return false;
  }
  for (const auto& member : all->get_object()) {
    const auto precision = parse_precision(std::string_view(member.key()));
    const json::object* of = member.value().if_object();
    if (!precision.ok() || of == nullptr ||
        !read_fields<T>(*of, fields, into.at(index_of(*precision)))) {
      return false;
    }
  }
  return true;
}

template <class T>
json::object write_by_precision(const std::array<T, kPrecisions.size()>& all, Fields<T> fields) {
  json::object object;
  for (const Precision precision : kPrecisions) {
    const T& of = all.at(index_of(precision));
    if (of.is_known()) {
      object[to_string(precision)] = write_fields<T>(of, fields);
    }
  }
  return object;
}

bool read_cost(const json::object& object, MachineStepCost& kept) {
  const json::value* step = object.if_contains("step");
  if (step == nullptr || !step->is_object() ||
      !read_fields<StepCost>(step->get_object(), kStepFields, kept.cost) ||
      !read_by_precision<LayersCost>(object, "layers", kLayersFields, kept.cost.layers) ||
      !read_by_precision<LogitsCost>(object, "logits", kLogitsFields, kept.cost.logits) ||
      std::any_of(kept.cost.layers.begin(), kept.cost.layers.end(),
                  [](const LayersCost& of) { return of.tile_tokens < 1; })) {
    return false;
  }
  constexpr std::array<std::pair<const char*, double PredictionError::*>, 2> kErrors = {
      {{"mean_error", &PredictionError::mean}, {"worst_error", &PredictionError::worst}}};
  const json::value* steps = object.if_contains("held_out_steps");
  if (steps == nullptr || !steps->is_int64() || steps->get_int64() < 0 ||
      steps->get_int64() > INT32_MAX) {
    return false;
  }
  kept.error.steps = static_cast<int>(steps->get_int64());
  return read_fields<PredictionError>(object, kErrors, kept.error);
}

fs::path file_of(const fs::path& directory, int threads) {
  return directory / fmt::format("step-cost.{}.json", threads);
}

bool is_text(const json::object& object, std::string_view name, std::string_view text) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() && std::string_view(value->get_string()) == text;
}

}  // namespace

json::object to_json(const MachineStepCost& kept) {
  return {{"cpu", kept.cpu},
          {"threads", kept.threads},
          {"time", kept.cpu_time ? "processor" : "wall"},
          {"step", write_fields<StepCost>(kept.cost, kStepFields)},
          {"layers", write_by_precision<LayersCost>(kept.cost.layers, kLayersFields)},
          {"logits", write_by_precision<LogitsCost>(kept.cost.logits, kLogitsFields)},
          {"held_out_steps", kept.error.steps},
          {"mean_error", kept.error.mean},
          {"worst_error", kept.error.worst}};
}

Status save_step_cost(const fs::path& directory, const ModelIdentity& model,
                      const MachineStepCost& cost) {
  json::object object = to_json(cost);
  object["format"] = kStepCostFormat;
  object["model"] = model.hex();
  const std::string text = json::serialize(object) + "\n";
  return write_whole(file_of(directory, cost.threads), {std::as_bytes(std::span(text))});
}

Result<MachineStepCost> load_step_cost(const fs::path& directory, const StepCostKey& key) {
  const fs::path path = file_of(directory, key.threads);
  const auto refused = [&](std::string_view why) {
    return make_error(ErrorCode::kCorrupt, "{} {}: run `protean profile --steps` again",
                      path.string(), why);
  };
  std::error_code unknown;
  if (!fs::exists(path, unknown)) {
    return make_error(ErrorCode::kNotFound,
                      "steps with {} threads were never measured: run `protean profile --steps`",
                      key.threads);
  }
  const auto object = read_json_file(path);
  if (!object.ok()) {
    return refused("cannot be read");
  }
  const json::value* format = object->if_contains("format");
  if (format == nullptr || *format != kStepCostFormat) {
    return refused("is no cost model that this version reads");
  }
  const json::value* threads = object->if_contains("threads");
  if (!is_text(*object, "model", key.model.hex()) || !is_text(*object, "cpu", key.cpu) ||
      threads == nullptr || *threads != key.threads) {
    return refused("is of another model, CPU or number of threads");
  }
  MachineStepCost kept{
      .cpu = key.cpu, .threads = key.threads, .cpu_time = is_text(*object, "time", "processor")};
  if (!read_cost(*object, kept)) {
    return refused("holds what no step can cost");
  }
  return kept;
}

}  // namespace protean

#include "model/step_cost_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

namespace protean {
namespace {

namespace json = boost::json;

template <class T>
using Fields = std::span<const std::pair<const char*, double T::*>>;

constexpr std::array<std::pair<const char*, double StepCost::*>, 9> kStepFields = {
    {{"fixed_us", &StepCost::fixed_us},
     {"token_us", &StepCost::token_us},
     {"context_token_us", &StepCost::context_token_us},
     {"sequence_us", &StepCost::sequence_us},
     {"kv_token_us", &StepCost::kv_token_us},
     {"far_kv_token_us", &StepCost::far_kv_token_us},
     {"near_kv_tokens", &StepCost::near_kv_tokens},
     {"wake_us", &StepCost::wake_us},
     {"copy_bytes_per_us", &StepCost::copy_bytes_per_us}}};

constexpr std::array<std::pair<const char*, double LayersCost::*>, 7> kLayersFields = {
    {{"step_us", &LayersCost::step_us},
     {"token_us", &LayersCost::token_us},
     {"more_token_us", &LayersCost::more_token_us},
     {"tile_us", &LayersCost::tile_us},
     {"bend_tokens", &LayersCost::bend_tokens},
     {"tile_tokens", &LayersCost::tile_tokens},
     {"pass_tokens", &LayersCost::pass_tokens}}};

constexpr std::array<std::pair<const char*, double LogitsCost::*>, 2> kLogitsFields = {
    {{"step_us", &LogitsCost::step_us}, {"row_us", &LogitsCost::row_us}}};

constexpr std::array<std::pair<const char*, double Transfer::*>, 2> kSumsFields = {
    {{"us", &Transfer::us}, {"bytes_per_us", &Transfer::bytes_per_us}}};

template <class T>
json::object write_fields(const T& from, Fields<T> fields) {
  json::object object;
  for (const auto& [name, field] : fields) {
    object[name] = from.*field;
  }
  return object;
}

bool is_time(const json::value& value) {
  return value.is_number() && std::isfinite(value.to_number<double>()) &&
         value.to_number<double>() >= 0;
}

// Returns false if a field is missing, or is not a possible time.
template <class T>
bool read_fields(const json::object& object, Fields<T> fields, T& into) {
  for (const auto& [name, field] : fields) {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !is_time(*value)) {
      return false;
    }
    into.*field = value->to_number<double>();
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

json::object layers_json(const StepCost& cost) {
  json::object object = write_by_precision<LayersCost>(cost.layers, kLayersFields);
  for (auto& member : object) {
    const auto& sums = cost.of(*parse_precision(std::string_view(member.key()))).sums;
    if (sums) {
      member.value().as_object()["sums"] = write_fields<Transfer>(*sums, kSumsFields);
    }
  }
  return object;
}

json::object logits_json(const StepCost& cost) {
  json::object object = write_by_precision<LogitsCost>(cost.logits, kLogitsFields);
  for (auto& member : object) {
    const auto& of = cost.logits_at(*parse_precision(std::string_view(member.key())));
    if (of.shared_us) {
      member.value().as_object()["shared_us"] = *of.shared_us;
    }
  }
  return object;
}

// Gives `read` the part of this name of each precision that has one. Returns false if `read` does.
template <class Read>
bool read_parts(const json::object& by_precision, std::string_view name, const Read& read) {
  return std::all_of(by_precision.begin(), by_precision.end(), [&](const auto& member) {
    const json::value* part = member.value().as_object().if_contains(name);
    return part == nullptr || read(*parse_precision(std::string_view(member.key())), *part);
  });
}

bool read_all_layers(const json::object& object, StepCost& cost) {
  return read_by_precision<LayersCost>(object, "layers", kLayersFields, cost.layers) &&
         read_parts(object.at("layers").as_object(), "sums",
                    [&](Precision precision, const json::value& part) {
                      Transfer& sums = cost.of(precision).sums.emplace();
                      return part.is_object() &&
                             read_fields<Transfer>(part.get_object(), kSumsFields, sums);
                    });
}

bool read_all_logits(const json::object& object, StepCost& cost) {
  return read_by_precision<LogitsCost>(object, "logits", kLogitsFields, cost.logits) &&
         read_parts(object.at("logits").as_object(), "shared_us",
                    [&](Precision precision, const json::value& part) {
                      if (is_time(part)) {
                        cost.logits_at(precision).shared_us = part.to_number<double>();
                      }
                      return is_time(part);
                    });
}

bool read_cost(const json::object& object, MachineStepCost& measured) {
  const json::value* step = object.if_contains("step");
  if (step == nullptr || !step->is_object() ||
      !read_fields<StepCost>(step->get_object(), kStepFields, measured.cost) ||
      !read_all_layers(object, measured.cost) || !read_all_logits(object, measured.cost) ||
      std::any_of(measured.cost.layers.begin(), measured.cost.layers.end(),
                  [](const LayersCost& of) { return of.tile_tokens < 1; })) {
    return false;
  }
  if (measured.origin == StepCostOrigin::kFingerprint) {
    return true;
  }
  constexpr std::array<std::pair<const char*, double PredictionError::*>, 2> kErrors = {
      {{"mean_error", &PredictionError::mean}, {"worst_error", &PredictionError::worst}}};
  const json::value* steps = object.if_contains("held_out_steps");
  if (steps == nullptr || !steps->is_int64() || steps->get_int64() < 0 ||
      steps->get_int64() > INT32_MAX) {
    return false;
  }
  measured.error.steps = static_cast<int>(steps->get_int64());
  return read_fields<PredictionError>(object, kErrors, measured.error);
}

bool is_text(const json::object& object, std::string_view name, std::string_view text) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() && std::string_view(value->get_string()) == text;
}

}  // namespace

json::object to_json(const MachineStepCost& measured) {
  const bool fingerprint = measured.origin == StepCostOrigin::kFingerprint;
  json::object object{{"cpu", measured.cpu},
                      {"threads", measured.threads},
                      {"origin", fingerprint ? "fingerprint" : "whole model"},
                      {"time", measured.cpu_time ? "processor" : "wall"},
                      {"step", write_fields<StepCost>(measured.cost, kStepFields)},
                      {"layers", layers_json(measured.cost)},
                      {"logits", logits_json(measured.cost)}};
  if (!fingerprint) {
    object["held_out_steps"] = measured.error.steps;
    object["mean_error"] = measured.error.mean;
    object["worst_error"] = measured.error.worst;
  }
  return object;
}

Result<MachineStepCost> parse_step_cost(const json::object& object, const std::string& name) {
  if (const json::value* inner = object.if_contains("steps");
      inner != nullptr && inner->is_object()) {
    return parse_step_cost(inner->get_object(), name);
  }
  MachineStepCost measured{.origin = is_text(object, "origin", "fingerprint")
                                         ? StepCostOrigin::kFingerprint
                                         : StepCostOrigin::kWholeModel,
                           .cpu_time = is_text(object, "time", "processor")};
  const json::value* cpu = object.if_contains("cpu");
  const json::value* threads = object.if_contains("threads");
  if (cpu == nullptr || !cpu->is_string() || threads == nullptr || !threads->is_int64() ||
      threads->get_int64() < 1 || threads->get_int64() > std::numeric_limits<int>::max() ||
      !read_cost(object, measured)) {
    return make_error(ErrorCode::kCorrupt,
                      "{} is not the cost of steps that `protean profile --steps --json` prints: a "
                      "field is missing or cannot be a time; measure again with this version",
                      name);
  }
  measured.cpu = std::string_view(cpu->get_string());
  measured.threads = static_cast<int>(threads->get_int64());
  return measured;
}

}  // namespace protean

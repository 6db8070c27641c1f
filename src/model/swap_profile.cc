#include "model/swap_profile.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "model/json_file.h"

namespace protean {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr std::int64_t kProfileFormat = 2;
constexpr std::int64_t kOrderFormat = 1;  // without kl_nats

fs::path file_of(const fs::path& directory, const SwapProfileKey& key) {
  return directory / fmt::format("swap-order.{}{}{}.json", to_string(key.precision),
                                 key.source == key.model ? "" : "." + key.source.hex(),
                                 key.halves ? ".halves" : "");
}

// Returns a member as text, or empty text.
std::string_view text_of(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string_view(value->get_string())
                                                : std::string_view();
}

// Returns a finite number, or nothing. The parser gives whole numbers as integers.
std::optional<double> number_of(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_number()) {
    return std::nullopt;
  }
  return value->to_number<double>();
}

json::object target_json(const SwapProfile& profile, std::size_t at) {
  const SwapTarget& target = profile.order[at];
  json::object object{{"layer", target.layer}};
  if (target.half) {
    object["half"] = to_string(*target.half);
  }
  object["lis"] = profile.importance[at];
  object["lts"] = profile.transformation[at];
  object["lrs"] = profile.replacement[at];
  return object;
}

// Returns nothing if the value is not a target with its scores.
std::optional<SwapTarget> read_target(const json::value& value, SwapProfile& profile) {
  const json::object* object = value.if_object();
  const json::value* layer = object == nullptr ? nullptr : object->if_contains("layer");
  if (layer == nullptr || !layer->is_int64() || layer->get_int64() < 0 ||
      layer->get_int64() > INT32_MAX) {
    return std::nullopt;
  }
  SwapTarget target{.layer = static_cast<int>(layer->get_int64())};
  const std::string_view name = text_of(*object, "half");
  for (const Component half : kLayerHalves) {
    if (name == to_string(half)) {
      target.half = half;
    }
  }
  const std::pair<const char*, std::vector<double>*> scores[] = {{"lis", &profile.importance},
                                                                 {"lts", &profile.transformation},
                                                                 {"lrs", &profile.replacement}};
  for (const auto& [key, out] : scores) {
    const std::optional<double> score = number_of(*object, key);
    if (!score) {
      return std::nullopt;
    }
    out->push_back(*score);
  }
  return target;
}

json::array losses_json(const std::vector<LayerLoss>& losses) {
  json::array layers;
  for (const LayerLoss& loss : losses) {
    layers.push_back(json::array(loss.begin(), loss.end()));
  }
  return layers;
}

bool read_losses(const json::object& object, const ModelSpec& spec, SwapProfile& profile) {
  const json::value* layers = object.if_contains("kl_nats");
  if (layers == nullptr || !layers->is_array() || std::ssize(layers->get_array()) != spec.layers) {
    return false;
  }
  for (const json::value& layer : layers->get_array()) {
    LayerLoss& loss = profile.kl_nats.emplace_back();
    if (!layer.is_array() || layer.get_array().size() != loss.size()) {
      return false;
    }
    for (std::size_t half = 0; half < loss.size(); ++half) {
      const json::value& nats = layer.get_array()[half];
      if (!nats.is_number() || nats.to_number<double>() < 0) {
        return false;
      }
      loss[half] = nats.to_number<double>();
    }
  }
  return true;
}

bool read_order(const json::object& object, const ModelSpec& spec, SwapProfile& profile) {
  const json::value* order = object.if_contains("order");
  const std::vector<SwapTarget> targets = swap_targets(spec.layers, profile.halves);
  if (order == nullptr || !order->is_array() || order->get_array().size() != targets.size()) {
    return false;
  }
  for (const json::value& value : order->get_array()) {
    const std::optional<SwapTarget> target = read_target(value, profile);
    if (!target) {
      return false;
    }
    profile.order.push_back(*target);
  }
  return std::is_permutation(targets.begin(), targets.end(), profile.order.begin());
}

}  // namespace

Status save_swap_profile(const fs::path& directory, const SwapProfileKey& key,
                         const SwapProfile& profile) {
  check(key.precision == profile.precision && key.halves == profile.halves &&
            profile.importance.size() == profile.order.size() &&
            profile.transformation.size() == profile.order.size() &&
            profile.replacement.size() == profile.order.size(),
        "the key is the profile's and every target has its scores");
  std::vector<double> losses;
  for (const LayerLoss& loss : profile.kl_nats) {
    losses.insert(losses.end(), loss.begin(), loss.end());
  }
  const std::vector<double>* const all[] = {&profile.importance, &profile.transformation,
                                            &profile.replacement, &losses};
  for (const std::vector<double>* scores : all) {
    if (!std::all_of(scores->begin(), scores->end(),
                     [](double score) { return std::isfinite(score); })) {
      return make_error(ErrorCode::kCorrupt,
                        "a score of the profile is not a finite number: the model computes NaN or "
                        "infinity on the calibration text");
    }
  }
  json::array order;
  for (std::size_t at = 0; at < profile.order.size(); ++at) {
    order.push_back(target_json(profile, at));
  }
  const json::object object{
      {"format", kProfileFormat},
      {"model", key.model.hex()},
      {"precision", to_string(profile.precision)},
      {"targets", profile.halves ? "halves" : "layers"},
      {"metric", profile.metric},
      {"weights", json::array(profile.weights.begin(), profile.weights.end())},
      {"tokens", profile.tokens},
      {"kl_nats", losses_json(profile.kl_nats)},
      {"order", std::move(order)}};
  const std::string text = json::serialize(object) + "\n";
  return write_whole(file_of(directory, key), {std::as_bytes(std::span(text))});
}

Result<SwapProfile> load_swap_profile(const fs::path& directory, const SwapProfileKey& key,
                                      const ModelSpec& spec) {
  const fs::path path = file_of(directory, key);
  const auto refused = [&](std::string_view why) {
    return make_error(ErrorCode::kCorrupt, "{} {}: delete it or run `protean profile` again",
                      path.string(), why);
  };
  std::error_code unknown;
  if (!fs::exists(path, unknown)) {
    return make_error(ErrorCode::kNotFound, "there is no {}", path.string());
  }
  const auto object = read_json_file(path);
  if (!object) {
    return refused("cannot be read");
  }
  const json::value* format = object->if_contains("format");
  if (format == nullptr || (*format != kProfileFormat && *format != kOrderFormat)) {
    return refused("is no swapping order that this version reads");
  }
  if (text_of(*object, "model") != key.model.hex()) {
    return refused("is another model's swapping order");
  }
  SwapProfile profile{.precision = key.precision, .halves = key.halves};
  if (text_of(*object, "precision") != to_string(key.precision) ||
      text_of(*object, "targets") != (key.halves ? "halves" : "layers") ||
      !read_order(*object, spec, profile) ||
      (*format == kProfileFormat && !read_losses(*object, spec, profile))) {
    return refused("is no order of this model's layers");
  }
  profile.metric = text_of(*object, "metric");
  profile.tokens = static_cast<std::int64_t>(number_of(*object, "tokens").value_or(0.0));
  const json::value* weights = object->if_contains("weights");
  if (weights != nullptr && weights->is_array() &&
      weights->get_array().size() == profile.weights.size()) {
    for (std::size_t i = 0; i < profile.weights.size(); ++i) {
      const json::value& weight = weights->get_array()[i];
      profile.weights[i] = weight.is_number() ? weight.to_number<double>() : 0.0;
    }
  }
  return profile;
}

}  // namespace protean

#include "model/hf_rope.h"

#include <algorithm>
#include <cmath>

#include "model/quote.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr double kDefaultTheta = 10000.0;

void read_llama3_scaling(ConfigFields& scaling, RopeSpec& rope) {
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = scaling.required_number("factor");
  rope.low_freq_factor = scaling.required_number("low_freq_factor");
  rope.high_freq_factor = scaling.required_number("high_freq_factor");
  rope.original_context = scaling.required_integer("original_max_position_embeddings");
  if (!(rope.low_freq_factor > 0.0) || !(rope.high_freq_factor > rope.low_freq_factor) ||
      rope.original_context <= 0) {
    scaling.fail(ErrorCode::kInvalidArgument,
                 "llama3 rope scaling needs 0 < low_freq_factor {} < high_freq_factor {} and "
                 "original_max_position_embeddings {} above 0",
                 rope.low_freq_factor, rope.high_freq_factor, rope.original_context);
  }
}

// A model's context and the part of it that came before scaling.
struct Contexts {
  int whole = 0;
  int original = 0;  // 0 if the config does not say
};

// Multiplies the context if the config names that of the unscaled model only.
void extend(int original, double factor, Contexts& contexts) {
  const double extended = std::floor(original * factor);
  constexpr double kMost = 1 << 30;
  contexts.whole = std::max(contexts.whole, static_cast<int>(std::min(extended, kMost)));
}

void read_yarn_scaling(ConfigFields& scaling, Contexts& contexts, RopeSpec& rope) {
  rope.scaling = RopeScaling::kYarn;
  rope.original_context =
      scaling.integer("original_max_position_embeddings",
                      contexts.original > 0 ? contexts.original : contexts.whole);
  if (rope.original_context <= 0) {
    return scaling.fail(ErrorCode::kInvalidArgument,
                        "yarn rope scaling needs original_max_position_embeddings {} above 0",
                        rope.original_context);
  }
  rope.factor =
      scaling.number("factor", static_cast<double>(contexts.whole) / rope.original_context);
  rope.beta_fast = scaling.number("beta_fast", rope.beta_fast);
  rope.beta_slow = scaling.number("beta_slow", rope.beta_slow);
  if (!scaling.boolean("truncate", true)) {
    scaling.fail(ErrorCode::kUnsupported,
                 "yarn rope scaling without \"truncate\" is not supported");
  }
  double magnitude = yarn_magnitude(rope.factor);
  if (scaling.has("mscale") && scaling.has("mscale_all_dim")) {
    magnitude = yarn_magnitude(rope.factor, scaling.number("mscale", 1.0)) /
                yarn_magnitude(rope.factor, scaling.number("mscale_all_dim", 1.0));
  }
  rope.magnitude = scaling.number("attention_factor", magnitude);
  extend(rope.original_context, rope.factor, contexts);
}

void read_long_scaling(ConfigFields& scaling, const Contexts& contexts, RopeSpec& rope) {
  rope.scaling = RopeScaling::kLong;
  rope.divisors = scaling.numbers("short_factor");
  rope.long_divisors = scaling.numbers("long_factor");
  rope.original_context =
      scaling.integer("original_max_position_embeddings",
                      contexts.original > 0 ? contexts.original : contexts.whole);
  if (rope.divisors.empty() || rope.long_divisors.empty() || rope.original_context <= 1) {
    return scaling.fail(ErrorCode::kInvalidArgument,
                        "longrope scaling needs \"short_factor\", \"long_factor\" and "
                        "\"original_max_position_embeddings\" above 1");
  }
  const double extended = static_cast<double>(contexts.whole) / rope.original_context;
  const double factor = contexts.original > 0 ? extended : scaling.number("factor", extended);
  rope.magnitude =
      scaling.number("attention_factor", longrope_magnitude(factor, rope.original_context));
}

// Dynamic NTK scaling changes theta with the length of a sequence, which would change keys that are
// cached. Takes the theta of the longest sequence for all, as other servers do.
void read_dynamic_scaling(ConfigFields& scaling, int dim, Contexts& contexts, RopeSpec& rope) {
  const double factor = scaling.required_number("factor");
  if (!(factor >= 1.0) || dim <= 2) {
    return scaling.fail(ErrorCode::kInvalidArgument,
                        "dynamic rope scaling needs a factor of at least 1, not {}", factor);
  }
  rope.theta *= std::pow(factor * factor - (factor - 1.0), dim / (dim - 2.0));
  extend(contexts.whole, factor, contexts);
}

void read_scaling(ConfigFields& scaling, int dim, Contexts& contexts, RopeSpec& rope) {
  const std::string type = scaling.text("rope_type", scaling.text("type", "default"));
  if (type == "llama3") {
    read_llama3_scaling(scaling, rope);
  } else if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = scaling.required_number("factor");
  } else if (type != "longrope" && type != "su" && scaling.number("factor", 0.0) == 1.0) {
    return;  // no method changes anything then
  } else if (type == "yarn") {
    read_yarn_scaling(scaling, contexts, rope);
  } else if (type == "longrope" || type == "su") {
    read_long_scaling(scaling, contexts, rope);
  } else if (type == "dynamic") {
    read_dynamic_scaling(scaling, dim, contexts, rope);
  } else if (type != "default" && type != "none") {
    scaling.fail(
        ErrorCode::kUnsupported,
        "rope scaling {} is not supported: use a model with none, linear, dynamic, llama3, "
        "yarn or longrope, or remove it from the config and stay within the original "
        "context",
        quote(type));
  }
  if (!(rope.factor > 0.0)) {
    scaling.fail(ErrorCode::kInvalidArgument, "the rope scaling factor {} must be above 0",
                 rope.factor);
  }
}

// Reads which part of a head rotates.
void read_rotated(ConfigFields& fields, int head_dim, RopeSpec& rope) {
  const std::string_view key = fields.one_of({"partial_rotary_factor", "rotary_pct"});
  const double part = fields.number(key, 1.0);
  const bool legal = part > 0.0 && part <= 1.0 && head_dim * part >= 2.0;
  if (fields.has(key) && !legal) {
    fields.fail(ErrorCode::kInvalidArgument,
                "\"{}\" is {}: it must be at most 1, and so large that some of the {} elements of "
                "a head rotate",
                key, part, head_dim);
    return;
  }
  const int rotated = fields.has(key) ? static_cast<int>(head_dim * part)
                                      : fields.integer("rotary_dim", rope.rotated);
  rope.rotated = rotated == head_dim ? 0 : rotated;
}

// Where a scaling is read from.
struct ScalingObject {
  const json::object& object;
  const std::string& file;
  std::string within;
};

void read_parameters(ConfigFields& config, const ScalingObject& from, int head_dim,
                     Contexts& contexts, RopeSpec& rope) {
  ConfigFields fields(from.object, from.file, from.within);
  rope.theta = fields.number("rope_theta", rope.theta);
  read_rotated(fields, head_dim, rope);
  read_scaling(fields, rope.rotated == 0 ? head_dim : rope.rotated, contexts, rope);
  config.require(fields.status());
}

}  // namespace

double yarn_magnitude(double factor, double scale) {
  return factor > 1.0 ? 0.1 * scale * std::log(factor) + 1.0 : 1.0;
}

double longrope_magnitude(double factor, int original_context) {
  return factor > 1.0 ? std::sqrt(1.0 + std::log(factor) / std::log(original_context)) : 1.0;
}

// Old configs have "rope_theta" and "rope_scaling"; new ones have "rope_parameters" with both, and
// if kinds of layers differ, with an object for each kind.
void read_rope(ConfigFields& config, const std::string& file, ModelSpec& spec) {
  const int head_dim = spec.attention.head_dim;
  RopeSpec& rope = spec.rope;
  Contexts contexts{spec.max_context, config.integer("original_max_position_embeddings", 0)};
  rope.theta = config.number("rope_theta", kDefaultTheta);
  read_rotated(config, head_dim, rope);
  const std::string key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  RopeSpec windowed = rope;
  if (const json::object* object = config.object(key)) {
    const json::value* full = object->if_contains("full_attention");
    const json::value* sliding = object->if_contains("sliding_attention");
    const bool nested = std::any_of(object->begin(), object->end(),
                                    [](const auto& member) { return member.value().is_object(); });
    const bool known = full != nullptr && full->is_object() && sliding != nullptr &&
                       sliding->is_object() && object->size() == 2;
    if (nested && !known) {
      config.fail(ErrorCode::kUnsupported,
                  "\"{}\" differs between kinds of layers other than \"full_attention\" and "
                  "\"sliding_attention\": this is not supported",
                  key);
    } else if (nested) {
      read_parameters(config, {full->get_object(), file, key + ".full_attention."}, head_dim,
                      contexts, rope);
      read_parameters(config, {sliding->get_object(), file, key + ".sliding_attention."}, head_dim,
                      contexts, windowed);
      spec.windowed_rope = windowed;
    } else {
      read_parameters(config, {*object, file, key + "."}, head_dim, contexts, rope);
    }
  }
  if (config.has("rope_local_base_freq") && !spec.windowed_rope) {
    windowed.theta = config.number("rope_local_base_freq", kDefaultTheta);
    spec.windowed_rope = windowed;
  }
  spec.max_context = contexts.whole;
}

}  // namespace protean

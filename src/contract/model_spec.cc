#include "contract/model_spec.h"

namespace protean {
namespace {

Error bad(std::string_view what, std::int64_t value, std::string_view want) {
  return make_error(ErrorCode::kInvalidArgument, "the model's {} is {}: it must be {}", what, value,
                    want);
}

Status validate_attention(const AttentionSpec& attention) {
  if (attention.heads <= 0 || attention.heads > 1024) {
    return bad("number of attention heads", attention.heads, "1 to 1024");
  }
  if (attention.kv_heads <= 0 || attention.heads % attention.kv_heads != 0) {
    return bad("number of KV heads", attention.kv_heads, "a divisor of its attention heads");
  }
  if (attention.head_dim <= 0 || attention.head_dim % 8 != 0 || attention.head_dim > 512) {
    return bad("head dimension", attention.head_dim, "a multiple of 8 up to 512");
  }
  if (attention.sliding_window < 0) {
    return bad("sliding window", attention.sliding_window, "0 (none) or more");
  }
  if (!(attention.scale >= 0.0F) || !(attention.score_cap >= 0.0F)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the model's attention scale {} and score cap {} must be 0 or more",
                      attention.scale, attention.score_cap);
  }
  return {};
}

Status validate_layers(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  for (const std::vector<bool>* list : {&attention.windowed, &attention.rotated}) {
    if (!list->empty() && std::ssize(*list) != spec.layers) {
      return bad("list of kinds of layers", std::ssize(*list), "as long as its layers");
    }
  }
  if (!spec.norms.before && !spec.norms.after) {
    return make_error(ErrorCode::kInvalidArgument, "the model's layers have no norm");
  }
  if (spec.parallel_halves &&
      (spec.norms.after || !spec.norms.before || spec.multipliers.residual != 1.0F)) {
    return make_error(ErrorCode::kUnsupported,
                      "attention and MLP in parallel with norms after them or a residual "
                      "multiplier {} are not supported",
                      spec.multipliers.residual);
  }
  return {};
}

Status validate_rope(const RopeSpec& rope, int head_dim) {
  if (!(rope.theta > 0.0) || !(rope.factor > 0.0) || !(rope.magnitude > 0.0)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the model's rope theta {}, factor {} and magnitude {} must be above 0",
                      rope.theta, rope.factor, rope.magnitude);
  }
  if (rope.rotated < 0 || rope.rotated > head_dim || rope.rotated % 2 != 0) {
    return bad("number of rotated elements of a head", rope.rotated,
               "even and at most the head dimension");
  }
  const std::ptrdiff_t pairs = (rope.rotated == 0 ? head_dim : rope.rotated) / 2;
  for (const std::vector<float>* divisors : {&rope.divisors, &rope.long_divisors}) {
    if (!divisors->empty() && std::ssize(*divisors) != pairs) {
      return bad("number of rope factors", std::ssize(*divisors), "one for each rotated pair");
    }
  }
  return {};
}

}  // namespace

Status validate(const ModelSpec& spec) {
  if (spec.layers <= 0 || spec.layers > 4096) {
    return bad("number of layers", spec.layers, "1 to 4096");
  }
  if (spec.hidden <= 0 || spec.hidden > (1 << 20)) {
    return bad("hidden size", spec.hidden, "1 to 1048576");
  }
  if (spec.ffn <= 0 || spec.ffn > (1 << 22)) {
    return bad("FFN size", spec.ffn, "1 to 4194304");
  }
  if (spec.vocab <= 0 || spec.vocab > (1 << 24)) {
    return bad("vocabulary size", spec.vocab, "1 to 16777216");
  }
  if (spec.max_context <= 0) {
    return bad("context length", spec.max_context, "at least 1");
  }
  if (!(spec.norm_eps >= 0.0F)) {
    return make_error(ErrorCode::kInvalidArgument, "the model's norm epsilon {} must be 0 or more",
                      spec.norm_eps);
  }
  if (spec.stored.group != 32 && spec.stored.group != 64 && spec.stored.group != 128) {
    return bad("group of weights that share a scale", spec.stored.group, "32, 64 or 128");
  }
  if (Status valid = validate_attention(spec.attention); !valid) {
    return valid;
  }
  if (Status valid = validate_layers(spec); !valid) {
    return valid;
  }
  if (spec.windowed_rope) {
    if (Status valid = validate_rope(*spec.windowed_rope, spec.attention.head_dim); !valid) {
      return valid;
    }
  }
  return validate_rope(spec.rope, spec.attention.head_dim);
}

bool can_shard(const ModelSpec& spec, int shards) {
  return spec.attention.kv_heads % shards == 0;
}

}  // namespace protean

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
  if (!(spec.norm_eps >= 0.0F) || !(spec.rope.theta > 0.0)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the model's norm epsilon {} must be 0 or more and its rope theta {} above 0",
                      spec.norm_eps, spec.rope.theta);
  }
  if (spec.stored.group != 32 && spec.stored.group != 64 && spec.stored.group != 128) {
    return bad("group of weights that share a scale", spec.stored.group, "32, 64 or 128");
  }
  return validate_attention(spec.attention);
}

}  // namespace protean

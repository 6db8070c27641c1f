#include "apps/sizing.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/units.h"
#include "cost/memory.h"

namespace protean {
namespace {

// Rotary tables and attention are computed up to here; beyond it a typing error is likelier.
constexpr int kLongestContext = 16 * 1024 * 1024;

// Layers' precision, under the names that people bring from elsewhere too.
Result<Precision> dtype_precision(const std::string& dtype) {
  if (dtype == "bfloat16" || dtype == "auto") {
    return Precision::kBf16;
  }
  if (dtype == "float32" || dtype == "float") {
    return Precision::kF32;
  }
  if (auto precision = parse_precision(dtype); precision.ok()) {
    return precision;
  }
  return make_error(ErrorCode::kInvalidArgument, "--dtype {}: use bf16, f32, w8, w4 or w3", dtype);
}

Result<KvPrecision> kv_precision(const std::string& dtype, Precision beside) {
  if (dtype == "auto") {
    return kv_precision_beside(beside);
  }
  if (dtype == "bf16" || dtype == "bfloat16") {
    return KvPrecision::kBf16;
  }
  if (dtype == "f32" || dtype == "float32" || dtype == "float") {
    return KvPrecision::kF32;
  }
  if (dtype == "int8") {
    return KvPrecision::kInt8;
  }
  return make_error(ErrorCode::kInvalidArgument, "--kv-cache-dtype {}: use auto, bf16, f32 or int8",
                    dtype);
}

// 0 = auto.
Result<int> wanted_length(const std::string& text) {
  if (text == "auto" || text == "-1") {
    return 0;
  }
  int length = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (failed != std::errc() || end != text.data() + text.size() || length < 2 ||
      length > kLongestContext) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--max-model-len {}: use auto or a number of tokens from 2 to {}", text,
                      kLongestContext);
  }
  return length;
}

// KV bytes to take: what was asked for, else enough for every sequence at full length, at most half
// of what the weights leave free.
Result<std::int64_t> kv_budget(const ModelOptions& options, const Machine& machine,
                               std::int64_t weight_bytes, std::int64_t full_bytes) {
  const std::int64_t free = machine.free_memory_bytes - weight_bytes;
  if (free <= 0) {
    return make_error(ErrorCode::kExhausted,
                      "{}: its weights need {} and {} are free: use a smaller model or free memory",
                      options.model, format_bytes(weight_bytes),
                      format_bytes(machine.free_memory_bytes));
  }
  if (options.kv_cache_memory == "auto") {
    return std::min(full_bytes, free / 2);
  }
  auto asked = parse_bytes(options.kv_cache_memory);
  if (!asked.ok()) {
    return make_error(asked.error().code, "--kv-cache-memory: {}", asked.error().message);
  }
  if (*asked > free) {
    return make_error(ErrorCode::kExhausted,
                      "--kv-cache-memory {}: {} are free beside the weights: ask for less",
                      options.kv_cache_memory, format_bytes(free));
  }
  return *asked;
}

}  // namespace

Result<Sizing> choose_sizing(const ModelOptions& options, const ModelSpec& spec,
                             const Machine& machine) {
  const auto precision = dtype_precision(options.dtype);
  if (!precision.ok()) {
    return precision.error();
  }
  const auto kept = kv_precision(options.kv_cache_dtype, *precision);
  if (!kept.ok()) {
    return kept.error();
  }
  const auto wanted = wanted_length(options.max_model_len);
  if (!wanted.ok()) {
    return wanted.error();
  }
  Sizing sizing;
  sizing.weight_bytes = spec.layers * layer_bytes(spec, *precision) + outer_bytes(spec, *precision);
  sizing.max_model_len = *wanted > 0 ? *wanted : std::max(2, spec.max_context);
  if (sizing.max_model_len > spec.max_context) {
    sizing.warnings.push_back(
        fmt::format("--max-model-len {} exceeds the {} tokens the checkpoint states: answers may "
                    "degrade beyond "
                    "them",
                    sizing.max_model_len, spec.max_context));
  }
  KvForm kv{.precision = *kept, .block_tokens = options.block_size};
  const std::int64_t block_bytes = kv_block_bytes(spec, kv);
  const auto blocks_per_sequence = [&] {
    return ceil_div<std::int64_t>(sizing.max_model_len, kv.block_tokens);
  };
  const double full_bytes = static_cast<double>(blocks_per_sequence()) * options.max_num_seqs *
                            static_cast<double>(block_bytes);
  const auto budget =
      kv_budget(options, machine, sizing.weight_bytes,
                static_cast<std::int64_t>(std::min(full_bytes, static_cast<double>(1LL << 60))));
  if (!budget.ok()) {
    return budget.error();
  }
  kv.blocks =
      std::min<std::int64_t>(*budget / block_bytes, std::numeric_limits<BlockId>::max() - 1);
  if (kv.blocks < blocks_per_sequence() && (*wanted > 0 || kv.blocks * kv.block_tokens < 2)) {
    return make_error(ErrorCode::kExhausted,
                      "{} for KV hold {} tokens, fewer than --max-model-len {}: lower it, use "
                      "--max-model-len auto, or give --kv-cache-memory {}",
                      format_bytes(*budget), kv.blocks * kv.block_tokens, sizing.max_model_len,
                      format_bytes(blocks_per_sequence() * block_bytes));
  }
  if (kv.blocks < blocks_per_sequence()) {
    sizing.max_model_len = static_cast<int>(kv.blocks * kv.block_tokens);
    sizing.warnings.push_back(fmt::format(
        "KV memory holds {} tokens: --max-model-len is lowered to it", sizing.max_model_len));
  }
  sizing.kv_bytes = kv.blocks * block_bytes;
  sizing.device = {.id = DeviceId{0},
                   .memory_bytes = machine.free_memory_bytes,
                   .cores = options.threads > 0 ? options.threads : machine.cores};
  sizing.form = single_device_form(spec, *precision, sizing.device.id, kv);
  if (Status legal = validate(sizing.form, spec, std::span(&sizing.device, 1)); !legal.ok()) {
    return legal.error();
  }
  return sizing;
}

}  // namespace protean

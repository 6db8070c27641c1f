#include "replica/sizing.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "cost/memory.h"
#include "replica/memory_sizing.h"
#include "replica/model_options.h"

namespace protean {
namespace {

// Longer contexts are refused as typing errors.
constexpr int kLongestContext = 16 * 1024 * 1024;

Result<KvPrecision> kv_precision(const std::string& dtype, Precision weights) {
  if (dtype == "auto") {
    return default_kv_precision(weights);
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

// Parses --max-model-len; 0 is auto.
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

// Returns the precision of each layer at the start: `precision`, or with --dtype auto that of each
// half in the checkpoint if they differ.
std::vector<LayerPrecision> layers_at_start(const ModelOptions& options, const ModelSpec& spec,
                                            Precision precision) {
  if (options.dtype == "auto" && !spec.stored.layers.empty()) {
    return spec.stored.layers;
  }
  return std::vector<LayerPrecision>(static_cast<std::size_t>(spec.layers), {precision, precision});
}

void add_devices(const ModelOptions& options, const DeviceGroup& group, const Machine& machine,
                 Sizing& sizing) {
  const auto count = std::ssize(group.devices);
  const std::vector<std::int64_t> memory = memory_of_devices(group, machine);
  for (std::size_t i = 0; i < group.devices.size(); ++i) {
    sizing.devices.push_back(
        {.id = DeviceId{static_cast<std::int32_t>(i)}, .memory_bytes = memory[i]});
    sizing.cpus.push_back(group.devices[i].cpus);
  }
  sizing.warnings.insert(sizing.warnings.end(), group.warnings.begin(), group.warnings.end());
  const CpuShare& first = group.devices.front().cpus;
  if (count == 1 && !options.compute.cpus.empty() && !first.where.pinned) {
    sizing.warnings.push_back(fmt::format(
        "--cpus {}: {} of these CPUs may be busy at once (--threads, or the container's "
        "quota), so threads are not pinned to them",
        options.compute.cpus, first.threads));
  }
}

struct StartPrecisions {
  Precision layers;
  KvPrecision kv;
};

Form form_at_start(const ModelOptions& options, const ModelSpec& spec, const DeviceGroup& group,
                   const StartPrecisions& precisions) {
  Form form =
      single_device_form(spec, layers_at_start(options, spec, precisions.layers), DeviceId{0},
                         {.precision = precisions.kv, .block_tokens = options.block_size});
  return divide(std::move(form), group);
}

// Chooses the form and its memory with one division among devices.
Result<Sizing> size_division(const ModelOptions& options, const ModelSpec& spec,
                             const Machine& machine) {
  const auto precision = dtype_precision(options.dtype, spec.stored);
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
  auto group = choose_group(options.group, options.compute, spec, machine);
  if (!group.ok()) {
    return group.error();
  }
  Sizing sizing;
  sizing.max_model_len = *wanted > 0 ? *wanted : std::max(2, spec.max_context);
  if (sizing.max_model_len > spec.max_context && spec.learned_positions) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--max-model-len {} exceeds the {} positions that the model has learned: use "
                      "at most so many",
                      sizing.max_model_len, spec.max_context);
  }
  if (sizing.max_model_len > spec.max_context) {
    sizing.warnings.push_back(
        fmt::format("--max-model-len {} exceeds the {} tokens the checkpoint states: answers may "
                    "degrade beyond "
                    "them",
                    sizing.max_model_len, spec.max_context));
  }
  add_devices(options, *group, machine, sizing);
  sizing.form = form_at_start(options, spec, *group, {*precision, *kept});
  // Parallel halves add up within one device, which the halves' copies need not share.
  sizing.joins = options.may_morph && sizing.replicas() > 1 && !spec.parallel_halves;
  sizing.step_precision = step_precision(spec, sizing.form);
  sizing.weight_bytes = weight_bytes(spec, sizing.form);
  if (const Status sized = size_memory(options, spec, machine, *group, sizing); !sized.ok()) {
    return sized.error();
  }
  if (const Status fits = fit_length(
          options, spec, widest_kv_blocks(options, spec, sizing, sizing.largest_kv_blocks), sizing);
      !fits.ok()) {
    return fits.error();
  }
  if (Status legal = validate(sizing.form, spec, sizing.devices); !legal.ok()) {
    return legal.error();
  }
  return sizing;
}

}  // namespace

bool is_any_length(const ModelOptions& options) {
  return options.max_model_len == "auto" || options.max_model_len == "-1";
}

Sizing sizing_of(Sizing all, int replica) {
  if (!all.unequal.empty()) {
    const ReplicaMemory& own = all.unequal[static_cast<std::size_t>(replica)];
    for (Holding& holding : all.form.group) {
      holding.lacking_pages = own.lacking_pages;
    }
    all.form.kv.blocks = own.kv_blocks;
    all.largest_kv_blocks = own.largest_kv_blocks;
  }
  return all;
}

std::int64_t lacking_pages(const Sizing& sizing) {
  std::int64_t pages = 0;
  for (int replica = 0; replica < sizing.replicas(); ++replica) {
    const Form form = sizing_of(sizing, replica).form;
    for (const Holding& holding : form.group) {
      pages += holding.lacking_pages;
    }
  }
  return pages;
}

Result<Precision> dtype_precision(const std::string& dtype, const StoredWeights& stored) {
  if (dtype == "auto") {
    return stored.precision;
  }
  if (dtype == "bfloat16") {
    return Precision::kBf16;
  }
  if (dtype == "float32" || dtype == "float") {
    return Precision::kF32;
  }
  if (auto precision = parse_precision(dtype); precision.ok()) {
    return precision;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "--dtype {}: use auto, bf16, f32, s24, w8, w4, w3, w8a8, w8a7 or w4a8", dtype);
}

Result<Sizing> choose_sizing(const ModelOptions& options, const ModelSpec& spec,
                             const Machine& machine, const std::function<Status(Sizing&)>& check) {
  // Memory of each device is asked for as of one.
  const auto divisions = options.device_memory == "auto"
                             ? divisions_to_try(options.group, options.compute, machine)
                             : std::vector{options.group};
  std::optional<Sizing> longest;
  std::optional<Error> refused;
  ModelOptions tried = options;
  for (const GroupOptions& division : divisions) {
    tried.group = division;
    auto sizing = size_division(tried, spec, machine);
    if (sizing.ok() && check) {
      const Status checked = check(*sizing);
      sizing = checked.ok() ? std::move(sizing) : checked.error();
    }
    if (sizing.ok() && (!longest || sizing->max_model_len > longest->max_model_len)) {
      longest = *std::move(sizing);
    } else if (!sizing.ok() && (!refused || sizing.error().code == ErrorCode::kExhausted)) {
      refused = sizing.error();  // the last division that the model can have says what would work
    }
  }
  return longest ? Result<Sizing>(*std::move(longest)) : *std::move(refused);
}

}  // namespace protean

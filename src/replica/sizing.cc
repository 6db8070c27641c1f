#include "replica/sizing.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <span>

#include "base/units.h"
#include "control/form_path.h"
#include "control/plan_morph.h"
#include "control/plan_regroup.h"
#include "cost/memory.h"
#include "replica/model_options.h"
#include "worker/rank.h"

namespace protean {
namespace {

// Longer contexts are refused as typing errors.
constexpr int kLongestContext = 16 * 1024 * 1024;
constexpr std::int64_t kMostBlocks = std::numeric_limits<BlockId>::max() - 1;

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

// Parses a flag's size; nothing for "auto".
Result<std::optional<std::int64_t>> wanted_bytes(const char* flag, const std::string& text) {
  if (text == "auto") {
    return std::optional<std::int64_t>();
  }
  const auto bytes = parse_bytes(text);
  if (!bytes.ok()) {
    return make_error(bytes.error().code, "{}: {}", flag, bytes.error().message);
  }
  return std::optional(*bytes);
}

// The values of --kv-cache-memory and --device-memory.
struct Asked {
  std::optional<std::int64_t> kv_bytes;
  std::optional<std::int64_t> device_bytes;
};

Result<Asked> asked_memory(const ModelOptions& options, const Machine& machine,
                           std::int64_t devices) {
  const auto kv = wanted_bytes("--kv-cache-memory", options.kv_cache_memory);
  if (!kv.ok()) {
    return kv.error();
  }
  const auto device = wanted_bytes("--device-memory", options.device_memory);
  if (!device.ok()) {
    return device.error();
  }
  if (*device && **device > machine.free_memory_bytes / devices) {
    return make_error(ErrorCode::kExhausted, "--device-memory {}: only {} are free{}: ask for less",
                      options.device_memory, format_bytes(machine.free_memory_bytes / devices),
                      devices > 1 ? fmt::format(" for each of {} devices", devices) : "");
  }
  return Asked{*kv, *device};
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

// Formats a size as a flag's value, rounded up to whole MiB.
std::string size_flag(std::int64_t bytes) {
  return fmt::format("{}MiB", ceil_div(bytes, kMiB));
}

// Memory of the fullest device that is not KV cache.
struct FixedMemory {
  std::int64_t weights = 0;
  std::int64_t activations = 0;
};

// Returns the KV bytes of a block on the device that has most of it.
std::int64_t block_bytes_on_a_device(const ModelSpec& spec, const Form& form) {
  std::int64_t most = 0;
  for (const Holding& holding : form.group) {
    std::int64_t shards = 0;
    for (const Holding::Layer& layer : holding.layers) {
      shards += layer.attention.count;
    }
    most = std::max(most, kv_layer_block_bytes(spec, form.kv) / form.shards * shards);
  }
  return most;
}

// Returns the bytes of so many KV blocks in whole pages of each layer, on the device with most.
std::int64_t kv_bytes(const ModelSpec& spec, Form form, std::int64_t blocks,
                      std::int64_t page_bytes) {
  form.kv.blocks = blocks;
  std::int64_t pages = 0;
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    pages = std::max(pages, kv_pages_on(spec, form, device, page_bytes));
  }
  return pages * page_bytes;
}

// Returns the KV bytes of one sequence of the length asked for; of one block if that is auto.
std::int64_t least_kv_bytes(const ModelOptions& options, const ModelSpec& spec,
                            const Sizing& sizing, std::int64_t page_bytes) {
  const bool any_length = options.max_model_len == "auto" || options.max_model_len == "-1";
  const std::int64_t blocks =
      any_length ? 1 : ceil_div<std::int64_t>(sizing.max_model_len, sizing.form.kv.block_tokens);
  return kv_bytes(spec, sizing.form, blocks, page_bytes);
}

// Returns the precisions that halves of layers may have: the highest first, the others unsorted.
std::vector<Precision> ladder_from(const Form& start, const ModelOptions& options) {
  std::vector<Precision> ladder = {highest_precision(start)};
  for (const Precision precision : kPrecisions) {  // an operator may restore a half to these
    if (!options.ladder.empty() && precision != ladder.front() && layers_at(start, precision) > 0) {
      ladder.push_back(precision);
    }
  }
  ladder.insert(ladder.end(), options.ladder.begin(), options.ladder.end());
  return ladder;
}

// Returns the KV bytes with which a form can change: KV lends the first swap its pages and keeps a
// block.
std::int64_t least_kv_to_lend(const ModelOptions& options, const ModelSpec& spec, Form form,
                              std::int64_t page_bytes) {
  form.kv.blocks = 1;
  const std::int64_t one_block =
      form_pages(spec, form, page_bytes) - weight_pages(spec, form, page_bytes);
  return page_bytes * (one_block + reserve_pages(spec, ladder_from(form, options), page_bytes,
                                                 share_of(form, form.group.front())));
}

// Returns the bytes of activations on the device that has most, and of its mailbox, with a slot for
// each stage's step.
std::int64_t step_activation_bytes(const ModelSpec& spec, const Form& form, int tokens) {
  std::int64_t most = 0;
  for (const Holding& holding : form.group) {
    most = std::max(most, activation_bytes(spec, tokens, std::min(kLogitRows, tokens),
                                           share_of(form, holding)));
  }
  const auto stages = static_cast<std::int64_t>(stages_of(form).size());
  return most + (stages > 1 ? stages * tokens * spec.hidden * 4 : 0);
}

// Returns the largest power of two for --max-num-batched-tokens with which activations take at most
// `bytes`; 0 if none of at least 16 does.
int tokens_within(const ModelOptions& options, const ModelSpec& spec, const Form& form,
                  std::int64_t bytes) {
  int tokens = 16;
  while (tokens * 2 < options.max_num_batched_tokens &&
         step_activation_bytes(spec, form, tokens * 2) <= bytes) {
    tokens *= 2;
  }
  const bool fits =
      tokens < options.max_num_batched_tokens && step_activation_bytes(spec, form, tokens) <= bytes;
  return fits ? tokens : 0;
}

struct DeviceRoom {
  std::int64_t device_bytes = 0;
  std::int64_t least_kv = 0;
};

// Returns the number of replicas that fit if fewer have more memory each, of which KV takes half in
// addition to what is fixed; 0 if not even one does, or if each device's memory is given.
std::int64_t replicas_within(const ModelOptions& options, const FixedMemory& fixed,
                             const DeviceRoom& room) {
  const int replicas = options.group.replicas;
  const std::int64_t needed = fixed.weights + fixed.activations + 2 * room.least_kv;
  return options.device_memory == "auto" && replicas > 1 ? room.device_bytes * replicas / needed
                                                         : 0;
}

// Returns the error for a device that has no room for weights, activations and the least KV. It
// names the remedies that work.
Error too_little_memory(const ModelOptions& options, const ModelSpec& spec, const Form& form,
                        const FixedMemory& fixed, const DeviceRoom& room) {
  const auto& [device_bytes, least_kv] = room;
  const bool given = options.device_memory != "auto";
  const std::int64_t needed = fixed.weights + fixed.activations + least_kv;
  std::string remedies = given ? fmt::format("use --device-memory {}", size_flag(needed))
                               : fmt::format("free {} of memory", size_flag(needed - device_bytes));
  if (const int tokens =
          tokens_within(options, spec, form, device_bytes - fixed.weights - least_kv);
      tokens > 0) {
    remedies += fmt::format(", {}--max-num-batched-tokens {}", given ? "" : "use ", tokens);
  }
  if (const std::int64_t replicas = replicas_within(options, fixed, room); replicas > 0) {
    remedies += fmt::format(", --data-parallel-size {}", replicas);
  }
  return make_error(ErrorCode::kExhausted,
                    "{}: weights ({}), activations ({}) and KV (at least {}) do not fit the {} "
                    "that {}{}: {}, a lower --dtype or a smaller model",
                    options.model, format_bytes(fixed.weights), format_bytes(fixed.activations),
                    format_bytes(least_kv), format_bytes(device_bytes),
                    given ? "--device-memory allows" : "are free",
                    form.group.size() > 1 || options.group.replicas > 1 ? " on a device" : "",
                    remedies);
}

// Returns the KV bytes to take: what was asked for, otherwise enough for every sequence at full
// length, but no more than a given --device-memory leaves, or half of what is free.
Result<std::int64_t> kv_budget(const ModelOptions& options, const Asked& asked, std::int64_t room,
                               std::int64_t full_bytes) {
  if (asked.kv_bytes && *asked.kv_bytes > room) {
    return make_error(ErrorCode::kExhausted,
                      "--kv-cache-memory {}: only {} are left by weights and activations: ask for "
                      "less",
                      options.kv_cache_memory, format_bytes(room));
  }
  if (asked.kv_bytes) {
    return *asked.kv_bytes;
  }
  const std::int64_t most = asked.device_bytes ? room : room / 2;
  return std::min(full_bytes, most);
}

// Returns the KV blocks that fit if every layer is at its lowest precision.
std::int64_t largest_kv_blocks(const Sizing& sizing, const ModelSpec& spec,
                               std::span<const Precision> ladder) {
  Form lowest = sizing.form;
  if (ladder.empty()) {
    return lowest.kv.blocks;
  }
  const Precision last =
      *std::min_element(ladder.begin(), ladder.end(),
                        [](Precision a, Precision b) { return weight_bits(a) < weight_bits(b); });
  const Precision embeddings = default_embeddings_precision(last);
  lowest.embeddings = is_below(embeddings, lowest.embeddings) ? embeddings : lowest.embeddings;
  for (LayerPrecision& layer : lowest.layer_precision) {
    for (const Component half : kLayerHalves) {
      layer.of(half) = is_below(last, layer.of(half)) ? last : layer.of(half);
    }
  }
  const PageBudget& budget = sizing.budget;
  return std::clamp<std::int64_t>(
      kv_blocks_beside(spec, lowest, budget.pages - budget.reserve, budget.page_bytes),
      lowest.kv.blocks, kMostBlocks);
}

// Returns the memory that each device can count on.
std::int64_t free_bytes_each(const Sizing& sizing) {
  return std::ranges::min_element(sizing.devices, {}, &DeviceSpec::memory_bytes)->memory_bytes;
}

// Chooses the pages and KV blocks of `sizing`.
Status size_memory(const ModelOptions& options, const ModelSpec& spec, const Machine& machine,
                   Sizing& sizing) {
  const auto asked = asked_memory(options, machine, std::ssize(sizing.devices));
  if (!asked.ok()) {
    return asked.error();
  }
  Form& form = sizing.form;
  KvForm& kv = form.kv;
  const std::int64_t device_bytes = asked->device_bytes.value_or(free_bytes_each(sizing));
  const std::int64_t block_bytes = block_bytes_on_a_device(spec, form);
  const std::int64_t full_blocks =
      std::min(kMostBlocks, options.max_num_seqs *
                                ceil_div<std::int64_t>(sizing.max_model_len, kv.block_tokens));
  const double full_bytes = static_cast<double>(weight_bytes(spec, form)) +
                            static_cast<double>(full_blocks) * static_cast<double>(block_bytes);
  const double mapped_bytes =
      machine.maps_pages ? std::min(static_cast<double>(device_bytes), full_bytes) : 0;
  const std::int64_t page_bytes = page_bytes_for(
      spec, form.shards, std::ssize(sizing.devices) * static_cast<std::int64_t>(mapped_bytes));
  const std::int64_t weights = weight_pages(spec, form, page_bytes);
  const FixedMemory fixed{weights * page_bytes,
                          step_activation_bytes(spec, form, options.max_num_batched_tokens)};
  const std::int64_t room = device_bytes - fixed.activations - fixed.weights;
  const std::int64_t least_kv = options.ladder.empty()
                                    ? least_kv_bytes(options, spec, sizing, page_bytes)
                                    : least_kv_to_lend(options, spec, form, page_bytes);
  if (room < least_kv) {
    return too_little_memory(options, spec, form, fixed, {device_bytes, least_kv});
  }
  const auto budget =
      kv_budget(options, *asked, room, kv_bytes(spec, form, full_blocks, page_bytes));
  if (!budget.ok()) {
    return budget.error();
  }
  const std::int64_t least_bytes = options.ladder.empty() ? 0 : least_kv;
  const std::int64_t pages =
      std::min(ceil_div(std::max(*budget, least_bytes), page_bytes), room / page_bytes);
  sizing.budget = {.page_bytes = page_bytes, .pages = weights + pages};
  sizing.device_bytes = sizing.budget.pages * page_bytes + fixed.activations;
  const std::int64_t fitting = kv_blocks_beside(spec, form, weights + pages, page_bytes);
  // A form that can change starts with all blocks that fit, since it returns to this form.
  const std::int64_t wanted = asked->kv_bytes ? kMostBlocks : full_blocks;
  kv.blocks = std::min({options.ladder.empty() ? std::min(*budget / block_bytes, wanted) : fitting,
                        fitting, kMostBlocks});
  if (kv.blocks < 1) {
    Form one = form;
    one.kv.blocks = 1;
    const std::int64_t least =
        (form_pages(spec, one, page_bytes) - weight_pages(spec, one, page_bytes)) * page_bytes;
    return make_error(ErrorCode::kExhausted,
                      "{} for KV hold not one block of {} tokens, because each layer's keys and "
                      "values take whole pages: give --kv-cache-memory at least {}",
                      format_bytes(*budget), kv.block_tokens, size_flag(least));
  }
  sizing.kv_bytes = kv.blocks * kv_block_bytes(spec, kv);
  sizing.largest_kv_blocks = largest_kv_blocks(sizing, spec, options.ladder);
  return {};
}

void add_devices(const ModelOptions& options, const DeviceGroup& group, const Machine& machine,
                 Sizing& sizing) {
  const auto count = std::ssize(group.devices);
  for (const GroupDevice& device : group.devices) {
    sizing.devices.push_back(
        {.id = DeviceId{static_cast<std::int32_t>(sizing.devices.size())},
         .memory_bytes = device.memory_bytes.value_or(machine.free_memory_bytes / count),
         .cores = device.cpus.threads});
    sizing.cpus.push_back(device.cpus);
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

}  // namespace

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

std::int64_t widest_kv_blocks(const ModelOptions& options, const ModelSpec& spec,
                              const Sizing& sizing, std::int64_t blocks) {
  const PageBudget& budget = sizing.budget;
  for (int homes = 2; homes <= options.group.replicas && !options.ladder.empty(); homes *= 2) {
    const auto wide = divided_form(sizing.form, homes, GroupBy::kShards);
    if (!wide.ok()) {
      break;
    }
    blocks = std::max(
        blocks, kv_blocks_beside(spec, *wide, budget.pages - budget.reserve, budget.page_bytes));
  }
  return blocks;
}

Status fit_length(const ModelOptions& options, const ModelSpec& spec, std::int64_t most_blocks,
                  Sizing& sizing) {
  const auto wanted = wanted_length(options.max_model_len);
  if (!wanted.ok()) {
    return wanted.error();
  }
  const KvForm& kv = sizing.form.kv;
  const std::int64_t needed = ceil_div<std::int64_t>(sizing.max_model_len, kv.block_tokens);
  const std::int64_t tokens = most_blocks * kv.block_tokens;
  if (most_blocks >= needed) {
    return {};
  }
  if (*wanted > 0 || tokens < 2) {
    Form most = sizing.form;
    Form enough = sizing.form;
    most.kv.blocks = most_blocks;
    enough.kv.blocks = needed;
    const std::int64_t page_bytes = sizing.budget.page_bytes;
    const std::int64_t missing =
        (form_pages(spec, enough, page_bytes) - form_pages(spec, most, page_bytes)) * page_bytes;
    const auto device = parse_bytes(options.device_memory);
    return make_error(ErrorCode::kExhausted,
                      "{} for KV hold {} tokens, fewer than --max-model-len {}: lower it, use "
                      "--max-model-len auto, or give {}",
                      format_bytes(most_blocks * kv_block_bytes(spec, kv)), tokens,
                      sizing.max_model_len,
                      device.ok() && options.kv_cache_memory == "auto"
                          ? "--device-memory " + size_flag(*device + missing)
                          : "--kv-cache-memory " +
                                size_flag(needed * block_bytes_on_a_device(spec, sizing.form)));
  }
  sizing.max_model_len = static_cast<int>(tokens);
  sizing.warnings.push_back(fmt::format(
      "KV memory holds {} tokens: --max-model-len is lowered to it", sizing.max_model_len));
  return {};
}

Result<Sizing> choose_sizing(const ModelOptions& options, const ModelSpec& spec,
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
  sizing.step_precision = step_precision(spec, sizing.form);
  sizing.weight_bytes = weight_bytes(spec, sizing.form);
  if (const Status sized = size_memory(options, spec, machine, sizing); !sized.ok()) {
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

}  // namespace protean

#include "replica/sizing.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <span>

#include "base/units.h"
#include "control/form_path.h"
#include "control/plan_morph.h"
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

// Returns a text that says for whom memory is, if it is not for one replica alone.
std::string for_each_replica(const ModelOptions& options) {
  const int replicas = options.data_parallel_size;
  return replicas == 1 ? "" : fmt::format(" for each of {} replicas", replicas);
}

Result<Asked> asked_memory(const ModelOptions& options, const Machine& machine) {
  const auto kv = wanted_bytes("--kv-cache-memory", options.kv_cache_memory);
  if (!kv.ok()) {
    return kv.error();
  }
  const auto device = wanted_bytes("--device-memory", options.device_memory);
  if (!device.ok()) {
    return device.error();
  }
  if (*device && **device > machine.free_memory_bytes) {
    return make_error(ErrorCode::kExhausted, "--device-memory {}: only {} are free{}: ask for less",
                      options.device_memory, format_bytes(machine.free_memory_bytes),
                      for_each_replica(options));
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

// Device memory that is not KV cache.
struct FixedMemory {
  std::int64_t weights = 0;  // including the reserve for variants
  std::int64_t activations = 0;
};

// Returns the KV bytes of one sequence of the length asked for; of one block if that is auto.
std::int64_t least_kv_bytes(const ModelOptions& options, const ModelSpec& spec,
                            const Sizing& sizing, std::int64_t page_bytes) {
  KvForm kv = sizing.form.kv;
  const bool any_length = options.max_model_len == "auto" || options.max_model_len == "-1";
  kv.blocks = any_length ? 1 : ceil_div<std::int64_t>(sizing.max_model_len, kv.block_tokens);
  return kv_pages(spec, kv, page_bytes) * page_bytes;
}

std::int64_t step_activation_bytes(const ModelSpec& spec, int tokens) {
  return activation_bytes(spec, tokens, std::min(kLogitRows, tokens));
}

// Returns the largest power of two for --max-num-batched-tokens with which activations take at most
// `bytes`; 0 if none of at least 16 does.
int tokens_within(const ModelOptions& options, const ModelSpec& spec, std::int64_t bytes) {
  int tokens = 16;
  while (tokens * 2 < options.max_num_batched_tokens &&
         step_activation_bytes(spec, tokens * 2) <= bytes) {
    tokens *= 2;
  }
  const bool fits =
      tokens < options.max_num_batched_tokens && step_activation_bytes(spec, tokens) <= bytes;
  return fits ? tokens : 0;
}

// Returns the error for a device that has no room for weights, activations and the least KV. It
// names the remedies that work.
Error too_little_memory(const ModelOptions& options, const ModelSpec& spec,
                        const FixedMemory& fixed, std::int64_t device_bytes,
                        std::int64_t least_kv) {
  const bool given = options.device_memory != "auto";
  const std::int64_t needed = fixed.weights + fixed.activations + least_kv;
  std::string remedies = given ? fmt::format("use --device-memory {}", size_flag(needed))
                               : fmt::format("free {} of memory", size_flag(needed - device_bytes));
  if (const int tokens = tokens_within(options, spec, device_bytes - fixed.weights - least_kv);
      tokens > 0) {
    remedies += fmt::format(", {}--max-num-batched-tokens {}", given ? "" : "use ", tokens);
  }
  const std::int64_t fitting = device_bytes * options.data_parallel_size / needed;
  if (options.data_parallel_size > 1 && !given && fitting > 0) {
    remedies += fmt::format(", --data-parallel-size {}", fitting);
  }
  return make_error(ErrorCode::kExhausted,
                    "{}: weights ({}), activations ({}) and KV (at least {}) do not fit the {} "
                    "that {}{}: {}, a lower --dtype or a smaller model",
                    options.model, format_bytes(fixed.weights), format_bytes(fixed.activations),
                    format_bytes(least_kv), format_bytes(device_bytes),
                    given ? "--device-memory allows" : "are free", for_each_replica(options),
                    remedies);
}

// Returns the KV bytes to take: what was asked for, otherwise enough for every sequence at full
// length, but no more than a given --device-memory leaves, or half of what is free.
Result<std::int64_t> kv_budget(const ModelOptions& options, const Asked& asked, std::int64_t room,
                               double full_bytes) {
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
  return full_bytes < static_cast<double>(most) ? static_cast<std::int64_t>(full_bytes) : most;
}

// Returns the precisions that halves of layers may have: the highest first, the others unsorted.
std::vector<Precision> ladder_from(const Form& start, const ModelOptions& options) {
  std::vector<Precision> ladder = {highest_precision(start)};
  for (const Precision precision : kPrecisions) {  // that an operator may restore a half to
    if (!options.ladder.empty() && precision != ladder.front() && layers_at(start, precision) > 0) {
      ladder.push_back(precision);
    }
  }
  ladder.insert(ladder.end(), options.ladder.begin(), options.ladder.end());
  return ladder;
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
  const std::int64_t page_bytes = sizing.budget.page_bytes;
  const std::int64_t pages =
      sizing.budget.pages - sizing.budget.reserve - weight_pages(spec, lowest, page_bytes);
  return std::clamp<std::int64_t>(kv_blocks_in(spec, lowest.kv, pages, page_bytes),
                                  lowest.kv.blocks, kMostBlocks);
}

// Divides the CPUs among the replicas. If there are fewer, each replica computes on all of them
// with one thread, and `warnings` says so.
Result<std::vector<CpuShare>> replica_cpus(const ModelOptions& options, const Machine& machine,
                                           std::vector<std::string>& warnings) {
  const int replicas = options.data_parallel_size;
  const auto all = choose_cpus(machine, options.compute);
  if (!all.ok()) {
    return all.error();
  }
  const std::size_t cpus = all->where.cpus.size();
  if (cpus >= static_cast<std::size_t>(replicas)) {
    return divide_cpus(machine, options.compute, replicas);
  }
  warnings.push_back(fmt::format(
      "--data-parallel-size {}: there {} {} CPU{}, so replicas wait for each other: use at most {}",
      replicas, cpus == 1 ? "is" : "are", cpus, cpus == 1 ? "" : "s", cpus));
  CpuShare share = *all;
  share.threads = 1;
  share.where.pinned = false;
  return std::vector<CpuShare>(static_cast<std::size_t>(replicas), share);
}

// Chooses the pages and KV blocks of `sizing`.
Status size_memory(const ModelOptions& options, const ModelSpec& spec, const Machine& machine,
                   Sizing& sizing) {
  const auto asked = asked_memory(options, machine);
  if (!asked.ok()) {
    return asked.error();
  }
  KvForm& kv = sizing.form.kv;
  const std::int64_t page_bytes = page_bytes_for(spec);
  const std::int64_t block_bytes = kv_block_bytes(spec, kv);
  const double full_bytes =
      static_cast<double>(ceil_div<std::int64_t>(sizing.max_model_len, kv.block_tokens)) *
      options.max_num_seqs * static_cast<double>(block_bytes);
  const std::int64_t reserve = reserve_pages(spec, ladder_from(sizing.form, options), page_bytes);
  const std::int64_t weights = weight_pages(spec, sizing.form, page_bytes) + reserve;
  const FixedMemory fixed{weights * page_bytes,
                          step_activation_bytes(spec, options.max_num_batched_tokens)};
  const std::int64_t device_bytes = asked->device_bytes.value_or(machine.free_memory_bytes);
  const std::int64_t room = device_bytes - fixed.activations - fixed.weights;
  const std::int64_t least_kv = least_kv_bytes(options, spec, sizing, page_bytes);
  if (options.ladder.empty() ? room < least_kv : room <= 0) {
    return too_little_memory(options, spec, fixed, device_bytes, least_kv);
  }
  const auto budget = kv_budget(options, *asked, room, full_bytes);
  if (!budget.ok()) {
    return budget.error();
  }
  const std::int64_t pages = std::min(ceil_div(*budget, page_bytes), room / page_bytes);
  sizing.budget = {.page_bytes = page_bytes, .pages = weights + pages, .reserve = reserve};
  const std::int64_t fitting = kv_blocks_in(spec, kv, pages, page_bytes);
  // A form that can change starts with all blocks that fit, since it returns to this form.
  kv.blocks =
      std::min({options.ladder.empty() ? *budget / block_bytes : fitting, fitting, kMostBlocks});
  sizing.kv_bytes = kv.blocks * block_bytes;
  sizing.largest_kv_blocks = largest_kv_blocks(sizing, spec, options.ladder);
  return {};
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
                    "--dtype {}: use auto, bf16, f32, w8, w4, w3, w8a8, w8a7 or w4a8", dtype);
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
    KvForm most = kv;
    KvForm enough = kv;
    most.blocks = most_blocks;
    enough.blocks = needed;
    const std::int64_t page_bytes = sizing.budget.page_bytes;
    const std::int64_t missing =
        (kv_pages(spec, enough, page_bytes) - kv_pages(spec, most, page_bytes)) * page_bytes;
    const auto device = parse_bytes(options.device_memory);
    return make_error(ErrorCode::kExhausted,
                      "{} for KV hold {} tokens, fewer than --max-model-len {}: lower it, use "
                      "--max-model-len auto, or give {}",
                      format_bytes(most_blocks * kv_block_bytes(spec, kv)), tokens,
                      sizing.max_model_len,
                      device.ok() && options.kv_cache_memory == "auto"
                          ? "--device-memory " + size_flag(*device + missing)
                          : "--kv-cache-memory " + size_flag(needed * kv_block_bytes(spec, kv)));
  }
  sizing.max_model_len = static_cast<int>(tokens);
  sizing.warnings.push_back(fmt::format(
      "KV memory holds {} tokens: --max-model-len is lowered to it", sizing.max_model_len));
  return {};
}

Result<Sizing> choose_sizing(const ModelOptions& options, const ModelSpec& spec,
                             const Machine& whole) {
  Machine machine = whole;
  machine.free_memory_bytes /= options.data_parallel_size;
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
  Sizing sizing;
  auto cpus = replica_cpus(options, machine, sizing.warnings);
  if (!cpus.ok()) {
    return cpus.error();
  }
  sizing.cpus = *std::move(cpus);
  const CpuShare& first = sizing.cpus.front();
  sizing.max_model_len = *wanted > 0 ? *wanted : std::max(2, spec.max_context);
  if (sizing.max_model_len > spec.max_context) {
    sizing.warnings.push_back(
        fmt::format("--max-model-len {} exceeds the {} tokens the checkpoint states: answers may "
                    "degrade beyond "
                    "them",
                    sizing.max_model_len, spec.max_context));
  }
  sizing.device = {
      .id = DeviceId{0}, .memory_bytes = machine.free_memory_bytes, .cores = first.threads};
  if (!options.compute.cpus.empty() && !first.where.pinned) {
    sizing.warnings.push_back(fmt::format(
        "--cpus {}: {} of these CPUs may be busy at once (--threads, or the container's "
        "quota), so threads are not pinned to them",
        options.compute.cpus, first.threads));
  }
  sizing.form =
      single_device_form(spec, layers_at_start(options, spec, *precision), sizing.device.id,
                         {.precision = *kept, .block_tokens = options.block_size});
  sizing.weight_bytes = weight_bytes(spec, sizing.form);
  if (const Status sized = size_memory(options, spec, machine, sizing); !sized.ok()) {
    return sized.error();
  }
  if (const Status fits = fit_length(options, spec, sizing.largest_kv_blocks, sizing); !fits.ok()) {
    return fits.error();
  }
  if (Status legal = validate(sizing.form, spec, std::span(&sizing.device, 1)); !legal.ok()) {
    return legal.error();
  }
  return sizing;
}

}  // namespace protean

#include "replica/memory_sizing.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "control/form_path.h"
#include "control/plan_morph.h"
#include "control/plan_regroup.h"
#include "cost/memory.h"
#include "cost/stage_layers.h"
#include "replica/stage_memory.h"
#include "worker/rank.h"

namespace protean {
namespace {

constexpr std::int64_t kMostBlocks = std::numeric_limits<BlockId>::max() - 1;

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

bool is_bounded(const GroupDevice& device) {
  return device.memory_bytes.has_value();
}

// The values of --kv-cache-memory and --device-memory.
struct Asked {
  std::optional<std::int64_t> kv_bytes;
  std::optional<std::int64_t> device_bytes;
};

// Returns the sizes that the flags ask for. `each` is what is free for each device.
Result<Asked> asked_memory(const ModelOptions& options, const DeviceGroup& group,
                           std::int64_t each) {
  const auto kv = wanted_bytes("--kv-cache-memory", options.kv_cache_memory);
  if (!kv.ok()) {
    return kv.error();
  }
  const auto device = wanted_bytes("--device-memory", options.device_memory);
  if (!device.ok()) {
    return device.error();
  }
  const std::size_t devices = group.devices.size();
  if (*device && std::any_of(group.devices.begin(), group.devices.end(), is_bounded)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--device-memory {}: {} gives the memory of its devices: remove one of them",
                      options.device_memory, options.group.file());
  }
  if (*device && **device > each) {
    return make_error(ErrorCode::kExhausted, "--device-memory {}: only {} are free{}: ask for less",
                      options.device_memory, format_bytes(each),
                      devices > 1 ? fmt::format(" for each of {} devices", devices) : "");
  }
  return Asked{*kv, *device};
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
  const std::int64_t blocks =
      is_any_length(options)
          ? 1
          : ceil_div<std::int64_t>(sizing.max_model_len, sizing.form.kv.block_tokens);
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
// each step in flight.
std::int64_t step_activation_bytes(const ModelOptions& options, const ModelSpec& spec,
                                   const Sizing& sizing, int tokens) {
  const Form& form = sizing.form;
  const int logit_rows = std::min(kLogitRows, tokens);
  const auto mailbox = [&](std::int64_t slots, std::int64_t rows) {
    return slots * rows * spec.hidden * std::int64_t{sizeof(float)};
  };
  if (sizing.joins) {
    const int rows = joint_rows(tokens, sizing.replicas(), options.max_num_seqs);
    return activation_bytes(spec, rows, logit_rows, widest_share(form)) +
           mailbox(joint_steps(sizing), rows);
  }
  std::int64_t most = 0;
  for (const Holding& holding : form.group) {
    most = std::max(most, activation_bytes(spec, tokens, logit_rows, share_of(form, holding)));
  }
  const auto stages = static_cast<std::int64_t>(stages_of(form).size());
  return most + (stages > 1 ? mailbox(stages, tokens) : 0);
}

// Returns the largest power of two for --max-num-batched-tokens with which activations take at most
// `bytes`; 0 if none of at least 16 does.
int tokens_within(const ModelOptions& options, const ModelSpec& spec, const Sizing& sizing,
                  std::int64_t bytes) {
  const auto fits = [&](int tokens) {
    return tokens < options.max_num_batched_tokens &&
           step_activation_bytes(options, spec, sizing, tokens) <= bytes;
  };
  int tokens = 16;
  while (fits(tokens * 2)) {
    tokens *= 2;
  }
  return fits(tokens) ? tokens : 0;
}

// What says how much memory a device may take.
enum class BoundBy : std::uint8_t { kFree, kFlag, kFile };

struct DeviceRoom {
  std::int64_t device_bytes = 0;
  std::int64_t least_kv = 0;
  BoundBy by = BoundBy::kFree;
};

// Returns the number of replicas that fit if fewer have more memory each, of which KV takes half in
// addition to what is fixed; 0 if not even one does, or if the devices are given.
std::int64_t replicas_within(const ModelOptions& options, const Sizing& sizing,
                             const FixedMemory& fixed, const DeviceRoom& room) {
  const int replicas = sizing.replicas();
  const std::int64_t needed = fixed.weights + fixed.activations + 2 * room.least_kv;
  const bool open = room.by == BoundBy::kFree && options.group.devices == "auto";
  return open && replicas > 1 ? room.device_bytes * replicas / needed : 0;
}

// Returns the error for a device that has no room for weights, activations and the least KV. It
// names the remedies that work.
Error too_little_memory(const ModelOptions& options, const ModelSpec& spec, const Sizing& sizing,
                        const FixedMemory& fixed, const DeviceRoom& room) {
  const auto& [device_bytes, least_kv, by] = room;
  const std::string& file = options.group.file();
  const std::int64_t needed = fixed.weights + fixed.activations + least_kv;
  const std::int64_t missing = (needed - device_bytes) * std::ssize(sizing.devices);
  std::string remedies =
      by == BoundBy::kFlag   ? fmt::format("use --device-memory {}", size_flag(needed))
      : by == BoundBy::kFile ? fmt::format("use memory = \"{}\" in {}", size_flag(needed), file)
                             : fmt::format("free {} of memory", size_flag(missing));
  if (const int tokens =
          tokens_within(options, spec, sizing, device_bytes - fixed.weights - least_kv);
      tokens > 0) {
    remedies +=
        fmt::format(", {}--max-num-batched-tokens {}", by == BoundBy::kFlag ? "" : "use ", tokens);
  }
  if (const std::int64_t replicas = replicas_within(options, sizing, fixed, room); replicas > 0) {
    remedies += fmt::format(", --data-parallel-size {}", replicas);
  }
  return make_error(ErrorCode::kExhausted,
                    "{}: weights ({}), activations ({}) and KV (at least {}) do not fit the {} "
                    "that {}{}: {}, a lower --dtype or a smaller model",
                    options.model, format_bytes(fixed.weights), format_bytes(fixed.activations),
                    format_bytes(least_kv), format_bytes(device_bytes),
                    by == BoundBy::kFlag   ? "--device-memory allows"
                    : by == BoundBy::kFile ? file + " allows"
                                           : "are free",
                    sizing.devices.size() > 1 ? " on a device" : "", remedies);
}

// Returns the KV bytes to take: what was asked for, otherwise enough for every sequence at full
// length, but no more than `most`.
Result<std::int64_t> kv_budget(const ModelOptions& options, const Asked& asked, std::int64_t room,
                               std::int64_t full_bytes, std::int64_t most) {
  if (asked.kv_bytes && *asked.kv_bytes > room) {
    return make_error(ErrorCode::kExhausted,
                      "--kv-cache-memory {}: only {} are left by weights and activations: ask for "
                      "less",
                      options.kv_cache_memory, format_bytes(room));
  }
  return asked.kv_bytes ? *asked.kv_bytes : std::min(full_bytes, most);
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
      kv_blocks_that_fit(spec, lowest, budget.pages - budget.reserve, budget.page_bytes),
      lowest.kv.blocks, kMostBlocks);
}

// Warns if a file gives some of these devices memory that they do not take.
void warn_of_unused_memory(const DeviceGroup& group, std::span<const DeviceSpec> devices,
                           Sizing& sizing) {
  const auto [least, most] = std::ranges::minmax_element(devices, {}, &DeviceSpec::memory_bytes);
  const bool of_all = devices.size() == sizing.devices.size();
  if (least->memory_bytes < most->memory_bytes &&
      std::any_of(group.devices.begin(), group.devices.end(), is_bounded)) {
    sizing.warnings.push_back(fmt::format(
        "device {} has {} and device {} has {}: every device takes as much as the smallest{}",
        least->id.value, format_bytes(least->memory_bytes), most->id.value,
        format_bytes(most->memory_bytes), of_all ? "" : " of its replica"));
  }
}

// Returns the error for KV memory that holds no block.
Error too_little_kv(const ModelSpec& spec, const Sizing& sizing, std::int64_t budget_bytes) {
  const std::int64_t page_bytes = sizing.budget.page_bytes;
  Form one = sizing.form;
  one.kv.blocks = 1;
  const std::int64_t least =
      (form_pages(spec, one, page_bytes) - weight_pages(spec, one, page_bytes)) * page_bytes;
  return make_error(ErrorCode::kExhausted,
                    "{} for KV hold not one block of {} tokens, because each layer's keys and "
                    "values take whole pages: give --kv-cache-memory at least {}",
                    format_bytes(budget_bytes), one.kv.block_tokens, size_flag(least));
}

// What decides which memory devices take.
struct Taking {
  std::int64_t device_bytes = 0;  // of a device
  BoundBy by = BoundBy::kFree;
  std::int64_t activations = 0;
  std::int64_t page_bytes = 0;
  std::int64_t full_blocks = 0;  // for all sequences at their full length
};

// Gives every device the same pages, and says how far KV can grow.
Status size_alike(const ModelOptions& options, const ModelSpec& spec, const Asked& asked,
                  const Taking& taking, Sizing& sizing) {
  const auto& [device_bytes, by, activations, page_bytes, full_blocks] = taking;
  const Form& form = sizing.form;
  const std::int64_t weights = weight_pages(spec, form, page_bytes);
  const FixedMemory fixed{weights * page_bytes, activations};
  const std::int64_t room = device_bytes - fixed.activations - fixed.weights;
  const std::int64_t least_kv = options.ladder.empty()
                                    ? least_kv_bytes(options, spec, sizing, page_bytes)
                                    : least_kv_to_lend(options, spec, form, page_bytes);
  if (room < least_kv) {
    return too_little_memory(options, spec, sizing, fixed, {device_bytes, least_kv, by});
  }
  // Without a bound, half of the room is left to other programs.
  const auto budget = kv_budget(options, asked, room, kv_bytes(spec, form, full_blocks, page_bytes),
                                by == BoundBy::kFree ? room / 2 : room);
  if (!budget.ok()) {
    return budget.error();
  }
  const std::int64_t least_bytes = options.ladder.empty() ? 0 : least_kv;
  const std::int64_t pages =
      std::min(ceil_div(std::max(*budget, least_bytes), page_bytes), room / page_bytes);
  sizing.budget = {.page_bytes = page_bytes, .pages = weights + pages};
  const std::int64_t fitting = kv_blocks_that_fit(spec, form, weights + pages, page_bytes);
  // A form that can change starts with all blocks that fit, since it returns to this form.
  const std::int64_t wanted = asked.kv_bytes ? kMostBlocks : full_blocks;
  const std::int64_t within = *budget / block_bytes_on_a_device(spec, form);
  sizing.form.kv.blocks =
      std::min({options.ladder.empty() ? std::min(within, wanted) : fitting, fitting, kMostBlocks});
  sizing.largest_kv_blocks = largest_kv_blocks(sizing, spec, options.ladder);
  return sizing.form.kv.blocks < 1 ? too_little_kv(spec, sizing, *budget) : Status();
}

// Gives each device of a pipeline pages of its own number, at most what `room` has for it, and no
// more than it can use: all stages hold the same blocks. Returns false and changes nothing if they
// do not suffice.
bool size_stages(const ModelOptions& options, const ModelSpec& spec, const DeviceGroup& group,
                 const StageRoom& room, Sizing& sizing) {
  const std::int64_t page_bytes = room.page_bytes;
  Form form = with_stages(spec, group, options.group.stages, room, sizing.form);
  const std::int64_t lent =
      options.ladder.empty() ? 0 : least_kv_to_lend(options, spec, form, page_bytes) / page_bytes;
  const auto pages_with = [&](std::int64_t blocks) {
    Form with = form;
    with.kv.blocks = blocks;
    std::vector<std::int64_t> pages = room.pages;
    for (std::size_t device = 0; device < pages.size(); ++device) {
      with.group[device].lacking_pages = 0;
      pages[device] = std::min(pages[device],
                               pages_on(spec, with, static_cast<int>(device), page_bytes) + lent);
    }
    return pages;
  };
  std::int64_t most = give_pages(form, pages_with(room.most_blocks));
  Form least = form;
  least.kv.blocks = is_any_length(options)
                        ? 1
                        : ceil_div<std::int64_t>(sizing.max_model_len, form.kv.block_tokens);
  if ((options.ladder.empty() ? form_pages(spec, least, page_bytes)
                              : weight_pages(spec, form, page_bytes) + lent) > most) {
    return false;
  }
  form.kv.blocks = std::min(kv_blocks_that_fit(spec, form, most, page_bytes), kMostBlocks);
  if (options.ladder.empty()) {  // a form that can change uses them at lower precisions
    form.kv.blocks = std::min(form.kv.blocks, room.most_blocks);
    most = give_pages(form, pages_with(form.kv.blocks));
  }
  sizing.budget = {.page_bytes = page_bytes, .pages = most};
  sizing.form = std::move(form);
  return true;
}

}  // namespace

Status size_memory(const ModelOptions& options, const ModelSpec& spec, const Machine& machine,
                   const DeviceGroup& group, Sizing& sizing) {
  const auto asked =
      asked_memory(options, group, machine.free_memory_bytes / std::ssize(sizing.devices));
  if (!asked.ok()) {
    return asked.error();
  }
  const auto smallest = std::ranges::min_element(sizing.devices, {}, &DeviceSpec::memory_bytes);
  const std::vector<std::int64_t> stages =
      asked->kv_bytes ? std::vector<std::int64_t>() : memory_of_stages(group, sizing.devices);
  Taking taking;
  taking.device_bytes = asked->device_bytes.value_or(smallest->memory_bytes);
  const bool bounded = is_bounded(group.devices[static_cast<std::size_t>(smallest->id.value)]);
  taking.by = asked->device_bytes ? BoundBy::kFlag : bounded ? BoundBy::kFile : BoundBy::kFree;
  std::vector<std::int64_t> replicas = {taking.device_bytes};
  if (stages.empty() && !asked->kv_bytes && !options.equal_replicas) {
    replicas = memory_of_replicas(group, sizing.devices, std::move(replicas));
  }
  taking.activations = step_activation_bytes(options, spec, sizing, options.max_num_batched_tokens);
  taking.full_blocks = std::min(
      kMostBlocks, options.max_num_seqs *
                       ceil_div<std::int64_t>(sizing.max_model_len, sizing.form.kv.block_tokens));
  const std::int64_t most_bytes = std::ranges::max(stages.empty() ? replicas : stages);
  const double full_bytes = static_cast<double>(weight_bytes(spec, sizing.form)) +
                            static_cast<double>(taking.full_blocks) *
                                static_cast<double>(block_bytes_on_a_device(spec, sizing.form));
  const double mapped_bytes =
      machine.maps_pages ? std::min(static_cast<double>(most_bytes), full_bytes) : 0;
  taking.page_bytes =
      page_bytes_for(spec, sizing.form.shards,
                     std::ssize(sizing.devices) * static_cast<std::int64_t>(mapped_bytes));
  StageRoom room{.page_bytes = taking.page_bytes, .pages = {}, .most_blocks = taking.full_blocks};
  for (const std::int64_t bytes : stages) {
    room.pages.push_back(std::max<std::int64_t>(0, bytes - taking.activations) / taking.page_bytes);
  }
  if (stages.empty() || !size_stages(options, spec, group, room, sizing)) {
    const std::span<const DeviceSpec> devices = sizing.devices;
    const std::size_t each = devices.size() / replicas.size();
    for (std::size_t first = 0; first < devices.size(); first += each) {
      warn_of_unused_memory(group, devices.subspan(first, each), sizing);
    }
    const auto size_with = [&](std::int64_t bytes, Sizing& sized) {
      Taking its = taking;
      its.device_bytes = bytes;
      return size_alike(options, spec, *asked, its, sized);
    };
    if (Status sized = size_apart(replicas, size_with, sizing); !sized.ok()) {
      return sized;
    }
  }
  sizing.device_bytes = sizing.budget.pages * taking.page_bytes + taking.activations;
  sizing.kv_bytes = sizing.form.kv.blocks * kv_block_bytes(spec, sizing.form.kv);
  sizing.largest_kv_blocks = largest_kv_blocks(sizing, spec, options.ladder);
  return {};
}

namespace {

// Returns how to give KV the missing bytes, so that it holds so many blocks.
std::string remedy_for_kv(const ModelOptions& options, const ModelSpec& spec, const Sizing& sizing,
                          std::int64_t blocks, std::int64_t missing) {
  const std::string& file = options.group.file();
  const auto device = parse_bytes(options.device_memory);
  if (options.kv_cache_memory == "auto" && device.ok()) {
    return "--device-memory " + size_flag(*device + missing);
  }
  if (options.kv_cache_memory == "auto" && file != "auto" &&
      file.find_first_not_of("0123456789") != file.npos) {
    return fmt::format("memory = \"{}\" in {}", size_flag(sizing.device_bytes + missing), file);
  }
  return "--kv-cache-memory " + size_flag(blocks * block_bytes_on_a_device(spec, sizing.form));
}

}  // namespace

std::int64_t widest_kv_blocks(const ModelOptions& options, const ModelSpec& spec,
                              const Sizing& sizing, std::int64_t blocks) {
  const PageBudget& budget = sizing.budget;
  const bool unequal = !sizing.unequal.empty();  // their groups hold at least what is counted here
  const bool may_form =
      !options.ladder.empty() && (!is_any_length(options) || (options.scales && !unequal));
  for (int homes = 2; homes <= sizing.replicas() && may_form; homes *= 2) {
    const auto wide =
        divided_form(sizing.form, homes, unequal ? GroupBy::kLayers : GroupBy::kShards);
    if (!wide.ok()) {
      break;
    }
    blocks = std::max(
        blocks, kv_blocks_that_fit(spec, *wide, budget.pages - budget.reserve, budget.page_bytes));
  }
  return blocks;
}

Status fit_length(const ModelOptions& options, const ModelSpec& spec, std::int64_t most_blocks,
                  Sizing& sizing) {
  const KvForm& kv = sizing.form.kv;
  const std::int64_t needed = ceil_div<std::int64_t>(sizing.max_model_len, kv.block_tokens);
  const std::int64_t tokens = most_blocks * kv.block_tokens;
  if (most_blocks >= needed) {
    return {};
  }
  if (!is_any_length(options) || tokens < 2) {
    Form most = sizing.form;
    Form enough = sizing.form;
    most.kv.blocks = most_blocks;
    enough.kv.blocks = needed;
    const std::int64_t page_bytes = sizing.budget.page_bytes;
    const std::int64_t missing =
        (form_pages(spec, enough, page_bytes) - form_pages(spec, most, page_bytes)) * page_bytes;
    return make_error(ErrorCode::kExhausted,
                      "{} for KV hold {} tokens, fewer than --max-model-len {}: lower it, use "
                      "--max-model-len auto, or give {}",
                      format_bytes(most_blocks * kv_block_bytes(spec, kv)), tokens,
                      sizing.max_model_len, remedy_for_kv(options, spec, sizing, needed, missing));
  }
  sizing.max_model_len = static_cast<int>(tokens);
  sizing.warnings.push_back(fmt::format(
      "KV memory holds {} tokens: --max-model-len is lowered to it", sizing.max_model_len));
  return {};
}

}  // namespace protean

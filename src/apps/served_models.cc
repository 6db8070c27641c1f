#include "apps/served_models.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "apps/configuration_list.h"
#include "apps/make_plan.h"
#include "apps/renew_files.h"
#include "apps/serve_intent.h"
#include "apps/version.h"
#include "base/log.h"
#include "base/units.h"
#include "control/in_place.h"
#include "cost/memory.h"
#include "device/cpu/low_priority.h"
#include "host/machine.h"
#include "replica/model_place.h"
#include "replica/resting.h"
#include "replica/sizing.h"
#include "replica/step_costs.h"

namespace protean {
namespace {

constexpr std::int64_t kLeastGrammarBytes = std::int64_t{16} << 20;

// Returns the names by which clients may call a model.
std::vector<std::string> names_of(const ModelSetting& setting, const ModelFiles& files) {
  std::vector<std::string> names;
  if (!setting.name.empty() || setting.served_names.empty()) {
    names.push_back(setting.name.empty() ? files.name : setting.name);
  }
  names.insert(names.end(), setting.served_names.begin(), setting.served_names.end());
  return names;
}

// Returns the format of --tool-call-parser; for auto, the format that the chat template uses.
Result<ToolFormat> choose_tool_format(const ModelSetting& setting, const ModelFiles& files) {
  if (setting.tool_call_parser == "auto") {
    return detect_tool_format(files.chat.template_source);
  }
  return parse_tool_format(setting.tool_call_parser);
}

ModelCard card_of(const ModelSetting& setting, const ModelFiles& files, const Form& form) {
  const ModelSpec& spec = files.checkpoint->spec();
  const std::int64_t bf16_bytes = spec.layers * layer_bytes(spec, Precision::kBf16) +
                                  component_bytes(spec, Component::kEmbeddings, Precision::kBf16);
  return {.architecture = spec.architecture,
          .format = std::filesystem::is_directory(setting.model.model) ? "safetensors" : "gguf",
          .parameters = bf16_bytes / 2,
          .weight_bytes = weight_bytes(spec, form)};
}

ServedModel served_model(const ModelSetting& setting, const ModelFiles& files,
                         const ReplicaOptions& replica, ToolFormat tool_format,
                         std::size_t grammar_bytes) {
  const Sizing& sizing = replica.sizing;
  const ModelSpec& spec = files.checkpoint->spec();
  std::vector<Precision> ladder, layers, embeddings;
  if (replica.morph) {
    ladder = replica.morph->bounds.ladder;
    layers = layer_precisions(sizing.form, replica.morph->bounds.ladder);
    embeddings = embeddings_precisions(sizing.form.embeddings, replica.morph->bounds.ladder);
  }
  return {
      .names = names_of(setting, files),
      .tokenizer = files.tokenizer.get(),
      .chat_template = &files.chat_template,
      .chat = files.chat,
      .defaults = files.generation,
      .max_model_len = sizing.max_model_len,
      .embedding_size = spec.hidden,
      .tool_format = tool_format,
      .infill = files.infill,
      .special_tokens_in_content = setting.model.special_tokens_in_content == "allow",
      .formats = std::make_shared<FormatCompiler>(*files.tokenizer, spec.vocab,
                                                  end_tokens(*files.tokenizer, files.generation),
                                                  grammar_bytes),
      .pooling = setting.pooling == "last" ? Pooling::kLast : Pooling::kMean,
      .local_time = local_time,
      .form = {.form = sizing.form,
               .wanted = sizing.form,
               .mode = replica.morph ? replica.morph->mode : MorphMode::kOff,
               .floor = replica.morph ? replica.morph->bounds.floor : QualityFloor{},
               .ladder = std::move(ladder),
               .precisions = std::move(layers),
               .embeddings_precisions = std::move(embeddings),
               .pages = {.page_bytes = sizing.budget.page_bytes,
                         .all = sizing.budget.pages,
                         .own = sizing.budget.pages,
                         .free = sizing.budget.pages -
                                 form_pages(spec, sizing.form, sizing.budget.page_bytes)}},
      .pages_by_device = [spec, page_bytes = sizing.budget.page_bytes](
                             const Form& form) { return pages_by_device(spec, form, page_bytes); },
      .ttft_target_ns = std::llround(setting.morph.slo_ttft_ms * static_cast<double>(kNsPerMs)),
      .replicas = sizing.replicas(),
      .router = std::string(to_string(replica.router)),
      .card = card_of(setting, files, sizing.form)};
}

// Warnings name the model if it is one of several.
void log_start(const OpenModel& model, bool of_several) {
  const ModelFiles& files = *model.files;
  const Sizing& sizing = model.replica.sizing;
  log::info("protean {}: {} ({}), {}", kVersion, files.name, files.checkpoint->description(),
            to_string(sizing.form));
  if (files.chat.template_source.empty()) {
    log::warning("{} has no chat template: chats use ChatML; give one with --chat-template",
                 files.name);
  }
  for (std::size_t device = 0; device < sizing.cpus.size(); ++device) {
    log::info("device {}: {}", device, to_string(sizing.cpus[device]));
  }
  for (int replica = 0; replica < sizing.replicas() && !sizing.unequal.empty(); ++replica) {
    log::info("replica {}: {}", replica, to_string(sizing_of(sizing, replica).form));
  }
  for (const std::string& warning : sizing.warnings) {
    log::warning("{}{}", of_several ? name_of(model) + ": " : "", warning);
  }
}

// Returns true if the form may change: by a policy, by an operator, or because replicas become
// groups, for which they need a form that may change.
bool has_policy(const ModelSetting& setting) {
  return setting.morph.mode != "off" || forms_groups(setting.fleet);
}

// Sizes a model for an equal part of what `machine` has free, `parts` in all; if that is too
// little, for everything that is free.
Result<ReplicaOptions> choose_share(const ModelSetting& setting, bool may_morph,
                                    const ModelFiles& files, const Machine& machine, int parts) {
  Machine share = machine;
  share.free_memory_bytes /= parts;
  ModelOptions model = setting.model;
  prepare_for_groups(setting.fleet, model);
  auto chosen =
      choose_replica(model, may_morph || has_policy(setting), setting.morph, files, share);
  if (chosen.ok() || parts == 1 || chosen.error().code != ErrorCode::kExhausted) {
    return chosen;
  }
  return choose_replica(model, may_morph || has_policy(setting), setting.morph, files, machine);
}

// Returns what devices have less than the one of the model that has most.
std::int64_t lacking_bytes(const Sizing& sizing) {
  return lacking_pages(sizing) * sizing.budget.page_bytes;
}

// Returns the memory of a model among those on the same CPUs; null if it trades none. It may borrow
// from models that come later as much as `machine` has free.
std::shared_ptr<ModelMemory> traded_memory(const ReplicaOptions& replica, const Machine& machine,
                                           const std::shared_ptr<SharedMemory>& all) {
  if (all == nullptr || !may_trade_memory(replica)) {
    return nullptr;
  }
  const PageBudget& budget = replica.sizing.budget;
  const FormBounds& bounds = replica.morph->bounds;
  Form least = bounds.full;
  least.kv.blocks = 1;
  std::vector<std::vector<int>> cpus;
  for (const CpuShare& share : replica.sizing.cpus) {
    cpus.push_back(share.where.cpus);
  }
  return std::make_shared<ModelMemory>(
      all, std::move(cpus),
      ModelMemory::Pages{
          .bytes = budget.page_bytes,
          .own = budget.pages,
          .least = form_pages(bounds.spec, least, budget.page_bytes) + budget.reserve,
          .lacking_bytes = lacking_bytes(replica.sizing),
          .free_bytes = machine.free_memory_bytes / std::ssize(replica.sizing.devices)});
}

struct SizedModel {
  ModelSetting setting;  // with what its intent chose
  IntentPlan plan;
  std::shared_ptr<const PlanReport> report;  // of this plan; null without an intent
  ReplicaOptions replica;
};

// Plans for the intent of a setting, and sizes the model. A configuration that fits by its estimate
// but has no room for longer steps or more KV gives way to the next one.
Result<SizedModel> size_model(const ModelSetting& asked, const OpenOptions& options,
                              const ModelFiles& files, const Machine& machine, int parts) {
  SizedModel sized{.setting = asked, .plan = {}, .report = options.chosen, .replica = {}};
  if (sized.report == nullptr && !asked.intent.intent.empty()) {
    auto chosen = choose_for_intent({.intent = asked.intent,
                                     .variant_cache = asked.morph.variant_cache,
                                     .machine = machine,
                                     .device_loads = options.device_loads,
                                     .lost_devices = options.lost_devices,
                                     .harvest = options.harvest},
                                    files, asked.model);
    if (!chosen.ok()) {
      return chosen.error();
    }
    sized.report = *std::move(chosen);
  }
  std::optional<Error> first;
  while (!options.harvest.is_over()) {
    sized.setting = asked;
    if (sized.report != nullptr) {
      sized.plan = apply_plan(*sized.report, options.may_move, sized.setting.model);
    }
    auto replica = choose_share(sized.setting, options.may_morph, files, machine, parts);
    if (replica.ok()) {
      sized.replica = *std::move(replica);
      return sized;
    }
    first = first.value_or(replica.error());
    const bool planned = sized.report != nullptr && options.chosen == nullptr;
    if (replica.error().code != ErrorCode::kExhausted || !planned) {
      return *first;
    }
    sized.report = next_choice(*sized.report);
    if (sized.report == nullptr) {
      return *first;
    }
    log::warning("{}: the next configuration by rank is tried", replica.error().message);
  }
  return plan_stopped();
}

// Does a part of opening a model that takes long and starts no threads: at low priority if others
// answer meanwhile.
template <class Work>
auto politely(const OpenOptions& options, const Work& work) {
  return options.harvest.await_turn ? cpu::at_low_priority(work) : work();
}

// The model's files are on disk.
Result<OpenModel> open_model(ModelSetting setting, const OpenOptions& options,
                             const Machine& machine, int parts) {
  const auto grammars = parse_bytes(setting.grammar_memory);
  if (!grammars.ok() || *grammars < kLeastGrammarBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--grammar-memory {} must be a size of at least 16MiB",
                      setting.grammar_memory);
  }
  if (const Status grouped = check_groups(setting.fleet, setting.model.group); !grouped.ok()) {
    return grouped.error();
  }
  auto files = politely(options, [&] { return open_model_files(setting.model); });
  if (!files.ok()) {
    return files.error();
  }
  if (options.served != nullptr) {
    if (const Status same = check_same_model(*options.served, *files); !same.ok()) {
      return same.error();
    }
  }
  const auto tool_format = choose_tool_format(setting, *files);
  if (!tool_format.ok()) {
    return tool_format.error();
  }
  const ModelSetting asked = std::move(setting);
  auto sized = size_model(asked, options, *files, machine, parts);
  if (!sized.ok()) {
    return sized.error();
  }
  setting = std::move(sized->setting);
  ReplicaOptions& replica = sized->replica;
  set_policies(setting.fleet, replica);
  if (options.turns != nullptr) {
    replica.turns = std::make_shared<ModelTurns>(options.turns, setting.priority);
  }
  replica.memory = traded_memory(replica, machine, options.memory);
  const int most = replica.sizing.replicas() * setting.model.max_num_seqs + setting.max_queued;
  // The inbox has room for all requests that the server lets in.
  auto inbox = std::make_unique<Inbox>(static_cast<std::size_t>(most));
  auto opened = std::make_unique<ModelFiles>(*std::move(files));
  if (!setting.name.empty()) {
    opened->name = setting.name;
  }
  ServedModel served = politely(options, [&] {
    return served_model(setting, *opened, replica, *tool_format,
                        static_cast<std::size_t>(*grammars));
  });
  Inbox& events = *inbox;
  const ServiceLimits limits{
      .max_outstanding = most,
      .sleep_idle_ns = setting.sleep_idle_s > 0 ? setting.sleep_idle_s * kNsPerS : kForeverNs};
  const std::string intent = setting.intent.intent;
  HostedModel hosted{std::move(served), limits,       events, nullptr, intent,
                     sized->plan,       replica.turns};
  hosted.no_intent = why_no_intent(asked.model, replica.sizing);
  hosted.configurations = configurations_of_files(asked.model.model, opened->checkpoint->spec(),
                                                  asked.morph.variant_cache);
  return OpenModel{.asked = asked,
                   .setting = std::move(setting),
                   .plan = sized->plan,
                   .report = std::move(sized->report),
                   .files = std::move(opened),
                   .replica = std::move(replica),
                   .inbox = std::move(inbox),
                   .hosted = std::move(hosted)};
}

bool same_cpus(const OpenModel& one, const OpenModel& other) {
  const auto same = [](const CpuShare& a, const CpuShare& b) {
    return a.where.cpus == b.where.cpus;
  };
  return std::equal(one.replica.sizing.cpus.begin(), one.replica.sizing.cpus.end(),
                    other.replica.sizing.cpus.begin(), other.replica.sizing.cpus.end(), same);
}

// Returns the bytes of so many pages on each device of a model.
std::int64_t bytes_of_pages(const Sizing& sizing, std::int64_t pages) {
  return pages * sizing.budget.page_bytes * std::ssize(sizing.devices);
}

// Returns the tokens of the longest request that a model promises to hold: without a policy, its
// form may never have more KV.
std::int64_t promised(const ReplicaOptions& replica) {
  const KvForm& kv = replica.sizing.form.kv;
  const bool grows = replica.morph && replica.morph->mode != MorphMode::kOff;
  return grows ? replica.sizing.max_model_len
               : std::min<std::int64_t>(replica.sizing.max_model_len, kv.blocks * kv.block_tokens);
}

// Returns the pages of a device that a model has now. One that trades memory keeps its own pages.
std::int64_t pages_now(const OpenModel& model) {
  const std::int64_t loaded = model.replica.sizing.budget.pages;
  return model.rest && model.replica.memory == nullptr ? model.rest->rest_pages.value_or(loaded)
                                                       : loaded;
}

}  // namespace

Error error_of_models(const std::vector<Error>& errors, std::size_t count) {
  if (count == 1) {
    return errors.front();
  }
  std::string all;
  for (const Error& error : errors) {
    all += (all.empty() ? "" : "; ") + error.message;
  }
  return {errors.front().code,
          fmt::format("{} of {} models cannot be served: {}", errors.size(), count, all)};
}

std::int64_t memory_of(const OpenModel& model) {
  const Sizing& sizing = model.replica.sizing;
  return sizing.device_bytes * std::ssize(sizing.devices) - lacking_bytes(sizing);
}

std::int64_t memory_now(const OpenModel& model) {
  const Sizing& sizing = model.replica.sizing;
  return memory_of(model) - bytes_of_pages(sizing, sizing.budget.pages - pages_now(model));
}

const std::string& name_of(const OpenModel& model) {
  return model.hosted.model.names.front();
}

Result<OpenModel> open_further_model(ModelSetting setting, const OpenOptions& options,
                                     std::int64_t free_bytes) {
  if (const Status found = find_model(setting.model); !found.ok()) {
    return found.error();
  }
  Machine machine = this_machine();
  machine.free_memory_bytes = std::max<std::int64_t>(0, free_bytes);
  auto model = open_model(std::move(setting), options, machine, 2);
  if (model.ok()) {
    log_start(*model, true);
  }
  return model;
}

Result<OpenModel> open_for_intent(const OpenModel& before, const IntentWish& wish,
                                  const OpenOptions& options, std::int64_t free_bytes) {
  ModelSetting setting = before.asked;
  setting.intent.intent = wish.intent;
  PlannedLoad& load = setting.intent.load;
  for (const auto& [number, known] :
       {std::pair(&load.batch, wish.batch), std::pair(&load.prompt_tokens, wish.prompt_tokens),
        std::pair(&load.output_tokens, wish.output_tokens)}) {
    *number = known > 0 ? known : *number;
  }
  const Status reset = forget_choice(setting.model, before.replica.sizing);
  OpenOptions same = options;
  same.served = &before;
  return reset.ok() ? open_further_model(std::move(setting), same, free_bytes)
                    : Result<OpenModel>(reset.error());
}

bool same_configuration(const OpenModel& one, const OpenModel& other) {
  Form form = one.replica.sizing.form;
  if (one.rest) {
    form.layer_precision = one.rest->layers;
    form.embeddings = one.rest->embeddings.value_or(form.embeddings);
  }
  form.kv.blocks = other.replica.sizing.form.kv.blocks;
  return form == other.replica.sizing.form && same_cpus(one, other);
}

Result<FormWish> in_place(const OpenModel& before, const OpenModel& after,
                          std::int64_t free_bytes) {
  const ReplicaOptions& now = before.replica;
  const ReplicaOptions& then = after.replica;
  if (!now.morph) {
    return make_error(ErrorCode::kUnavailable, "its form cannot change without --morph");
  }
  if (!same_cpus(before, after)) {
    return make_error(ErrorCode::kUnavailable, "it goes to other CPUs");
  }
  if (!now.sizing.unequal.empty() || !then.sizing.unequal.empty()) {
    return make_error(ErrorCode::kUnavailable, "its replicas have unequal memory");
  }
  const PageBudget& pages = then.sizing.budget;
  auto wish = wish_in_place(now.morph->bounds, {.form = now.sizing.form, .longest = promised(now)},
                            {.form = then.sizing.form,
                             .longest = promised(then),
                             .bytes = pages.pages * pages.page_bytes});
  if (wish.ok()) {
    const std::int64_t more = bytes_of_pages(now.sizing, *wish->rest_pages - pages_now(before));
    if (more > free_bytes) {
      return make_error(ErrorCode::kUnavailable, "in place it needs {} of free memory",
                        format_bytes(more));
    }
  }
  return wish;
}

std::vector<Precision> morphs_to(const OpenModel& model) {
  const auto& morph = model.replica.morph;
  return morph ? layer_precisions(morph->start, morph->bounds.ladder) : std::vector<Precision>();
}

Result<std::vector<OpenModel>> open_models(std::vector<ModelSetting> settings,
                                           const OpenOptions& options) {
  Machine machine = this_machine();
  const auto count = static_cast<int>(settings.size());
  std::vector<OpenModel> models;
  std::vector<Error> errors;
  std::int64_t taken_bytes = 0;
  for (int i = 0; i < count; ++i) {
    const std::string name = settings[static_cast<std::size_t>(i)].name;
    ModelSetting& setting = settings[static_cast<std::size_t>(i)];
    const Status located = locate_model(setting.model);
    auto model = located.ok() ? open_model(std::move(setting), options, machine, count - i)
                              : located.error();
    if (model.ok()) {
      const std::int64_t bytes = memory_of(*model);
      taken_bytes += bytes;
      machine.free_memory_bytes -= std::min(bytes, machine.free_memory_bytes);
      models.push_back(*std::move(model));
      continue;
    }
    const Error& error = model.error();
    const bool full = error.code == ErrorCode::kExhausted && taken_bytes > 0;
    errors.push_back(
        {error.code, count == 1 ? error.message
                                : fmt::format("{}: {}{}", name, error.message,
                                              full ? fmt::format(" (the models before it take {})",
                                                                 format_bytes(taken_bytes))
                                                   : "")});
  }
  if (!errors.empty()) {
    return error_of_models(errors, static_cast<std::size_t>(count));
  }
  for (const OpenModel& model : models) {
    log_start(model, models.size() > 1);
  }
  return models;
}

void learn_costs(OpenModel& model, const Harvest& harvest) {
  ReplicaOptions& replica = model.replica;
  const Checkpoint& checkpoint = *model.files->checkpoint;
  FingerprintOptions wanted = fingerprint_options(replica);
  wanted.harvest = harvest;
  const auto alone = known_step_cost({.model = model.setting.model.model,
                                      .directory = model.setting.morph.variant_cache,
                                      .version = kVersion},
                                     checkpoint, wanted);
  if (!alone.ok()) {
    log::warning("{}: what steps cost is not known until they run: {}", name_of(model),
                 alone.error().message);
  } else if (alone->is_known()) {
    replica.cost = group_cost(*alone, checkpoint.spec(), wanted.layers, kAssumedTransfer);
  }
}

Result<std::unique_ptr<Replicas>> start_replicas(OpenModel& model, TokenSink& sink,
                                                 const LoadHooks& hooks) {
  const TimeNs began_ns = steady_now_ns();
  auto replicas =
      Replicas::start(model.rest ? resting_in(model.replica, *model.rest) : model.replica,
                      {*model.files->checkpoint, hooks}, *model.inbox, sink);
  model.load_s = static_cast<double>(steady_now_ns() - began_ns) / static_cast<double>(kNsPerS);
  return replicas;
}

}  // namespace protean

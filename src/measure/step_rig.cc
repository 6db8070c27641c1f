#include "measure/step_rig.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "control/plan_morph.h"
#include "cost/memory.h"
#include "host/machine.h"
#include "replica/replica.h"
#include "terminal/progress.h"

namespace protean {
namespace {

constexpr int kBlockTokens = 16;  // the default of a server

int most_tokens(const StepRigOptions& options) {
  int most = 1;
  for (const StepSizes& sizes : options.steps) {
    most = std::max(most, sizes.tokens());
  }
  return most;
}

int longest_sequence(const StepRigOptions& options) {
  int longest = 1;
  for (const StepSizes& sizes : options.steps) {
    longest = std::max(longest, sizes.longest());
  }
  return longest;
}

// Returns the precisions without duplicates, most bits first.
std::vector<Precision> ladder_of(std::vector<Precision> precisions) {
  std::sort(precisions.begin(), precisions.end(),
            [](Precision a, Precision b) { return weight_bits(a) > weight_bits(b); });
  precisions.erase(std::unique(precisions.begin(), precisions.end()), precisions.end());
  return precisions;
}

// Returns the precisions worth keeping on disk: bf16 is packed as fast as a copy is read.
std::vector<Precision> kept_precisions(std::vector<Precision> precisions) {
  std::erase_if(precisions, [](Precision precision) { return weight_bits(precision) >= 16; });
  return precisions;
}

}  // namespace

Result<std::unique_ptr<StepRig>> StepRig::create(const StepRigOptions& options) {
  auto checkpoint = open_checkpoint(options.model);
  if (!checkpoint.ok()) {
    return checkpoint.error();
  }
  const std::shared_ptr<Checkpoint> shared = *std::move(checkpoint);
  auto variants = VariantStore::open({shared, options.model}, {},
                                     {.directory = options.variant_cache,
                                      .precisions = kept_precisions(options.precisions),
                                      .shards = options.group ? options.group->shards : 1});
  if (!variants.ok()) {
    return variants.error();
  }
  std::unique_ptr<StepRig> rig(new StepRig(options, shared, *std::move(variants)));
  const auto budget = rig->choose_memory(options);
  if (!budget.ok()) {
    return budget.error();
  }
  if (const Status packed =
          rig->variants_->pack_missing(count_bar("packing", "parts of the model"));
      !packed.ok()) {
    log::warning("{}: layers are packed whenever they are needed, which takes longer",
                 packed.error().message);
  }
  rig->budget_ = *budget;
  if (Status started = rig->start_worker(); !started.ok()) {
    return started.error();
  }
  return rig;
}

StepRig::StepRig(const StepRigOptions& options, std::shared_ptr<Checkpoint> checkpoint,
                 std::shared_ptr<VariantStore> variants)
    : checkpoint_(std::move(checkpoint)),
      variants_(std::move(variants)),
      group_(options.group.value_or(
          DeviceGroup{.devices = {{options.cpus, std::nullopt}},
                      .division = {.tensor = 1, .stage_layers = {checkpoint_->spec().layers}}})),
      stopwatch_(options.cpu_time, options.cpus.threads),
      max_step_tokens_(most_tokens(options)),
      max_positions_(longest_sequence(options)) {}

Result<PageBudget> StepRig::choose_memory(const StepRigOptions& options) {
  const std::vector<Precision> ladder = ladder_of(options.precisions);
  KvForm kv{.precision = default_kv_precision(ladder.front()), .block_tokens = kBlockTokens};
  for (const StepSizes& sizes : options.steps) {
    kv.blocks = std::max<std::int64_t>(kv.blocks, sizes.blocks(kBlockTokens));
  }
  form_ = form_at(ladder.front(), kv);
  PageBudget budget{.page_bytes = page_bytes_for(spec(), group_.shards)};
  budget.reserve =
      reserve_pages(spec(), ladder, budget.page_bytes, share_of(form_, form_.group.front()));
  for (const Precision precision : ladder) {  // the embeddings are swapped too
    budget.reserve =
        std::max(budget.reserve, component_pages(spec(), Component::kEmbeddings,
                                                 default_embeddings_precision(precision),
                                                 budget.page_bytes, group_.shards));
  }
  budget.pages = form_pages(spec(), form_, budget.page_bytes) + budget.reserve;
  const std::int64_t needed =
      std::ssize(form_.group) *
      (budget.pages * budget.page_bytes + activation_bytes(spec(), max_step_tokens_, kLogitRows,
                                                           share_of(form_, form_.group.front())));
  const std::int64_t free = free_memory_bytes();
  if (needed > free) {
    return make_error(ErrorCode::kExhausted,
                      "{}: timing it needs {} and {} are free: ask for fewer sequences, shorter "
                      "prompts or lower precisions only",
                      options.model.string(), format_bytes(needed), format_bytes(free));
  }
  return budget;
}

Form StepRig::form_at(Precision precision, const KvForm& kv) const {
  return divide(single_device_form(spec(), precision, DeviceId{0}, kv), group_);
}

Status StepRig::start_worker() {
  worker_.reset();
  std::vector<WorkerDevice> devices;
  for (const GroupDevice& device : group_.devices) {
    devices.push_back({device.cpus.threads, device.cpus.where});
  }
  const WorkerOptions worker_options{.form = form_,
                                     .devices = std::move(devices),
                                     .max_step_tokens = max_step_tokens_,
                                     .max_positions = max_positions_,
                                     .pages = budget_,
                                     .read_component = read_from(variants_),
                                     .background_share = 1};
  auto worker =
      CpuWorker::create(worker_options, *checkpoint_, progress_bar("loading"),
                        [this](StepResult result) { results_.push(std::move(result)); },
                        {.ready = [this](MorphReady ready) { morphs_.push(std::move(ready)); },
                         .done = [this](MorphDone done) { morphs_.push(done); }});
  if (!worker.ok()) {
    return worker.error();
  }
  worker_ = *std::move(worker);
  return fill_kv();
}

// Computes one sequence and copies its blocks to all others, so that no block is zeros.
Status StepRig::fill_kv() {
  const int tokens = std::min({max_step_tokens_, max_positions_, 256});
  const auto computed = time_s(prefill_sizes(tokens));
  if (!computed.ok()) {
    return computed.error();
  }
  const std::int64_t full = std::max(1, tokens / kBlockTokens);
  std::vector<BlockMove> moves;
  for (std::int64_t block = full; block < form_.kv.blocks; ++block) {
    moves.push_back({static_cast<BlockId>(block % full), static_cast<BlockId>(block)});
  }
  worker_->move_blocks(std::move(moves));
  return {};
}

Status StepRig::become(Precision precision) {
  if (default_embeddings_precision(precision) != form_.embeddings) {
    form_ = form_at(precision, form_.kv);
    return start_worker();
  }
  const auto layers = static_cast<std::size_t>(spec().layers);
  return become(std::vector<LayerPrecision>(layers, {precision, precision}), form_.embeddings);
}

Status StepRig::become(std::span<const LayerPrecision> layers, Precision embeddings) {
  // Lowering comes first and makes room for raising.
  for (const bool lowered : {true, false}) {
    if (embeddings != form_.embeddings &&
        (weight_bits(embeddings) < weight_bits(form_.embeddings)) == lowered) {
      if (Status swapped = swap({0, Component::kEmbeddings, embeddings}); !swapped.ok()) {
        return swapped;
      }
    }
    for (int layer = 0; layer < spec().layers; ++layer) {
      for (const Component half : kLayerHalves) {
        const auto at = static_cast<std::size_t>(layer);
        const Precision now = form_.layer_precision[at].of(half);
        const Precision wanted = layers[at].of(half);
        if (now == wanted || (weight_bits(wanted) < weight_bits(now)) != lowered) {
          continue;
        }
        if (Status swapped = swap({layer, half, wanted}); !swapped.ok()) {
          return swapped;
        }
      }
    }
  }
  return {};
}

StepRig::MorphAnswer StepRig::wait_for_morph() {
  std::vector<MorphAnswer> answers = morphs_.pop_all();
  check(answers.size() == 1, "one step of a morph is under way at a time");
  return std::move(answers.front());
}

Status StepRig::swap(const SwapComponent& swap) {
  const MorphId id{++last_morph_};
  worker_->prepare(id, swap);
  const MorphAnswer answer = wait_for_morph();
  if (const auto& failure = std::get<MorphReady>(answer).failure; failure) {
    return make_error(failure->code, "{}: {}", to_string(MorphStep(swap)), failure->message);
  }
  worker_->commit(id);
  wait_for_morph();
  form_ = after(std::move(form_), swap);
  return {};
}

StepPlan StepRig::plan_of(const StepSizes& sizes) {
  StepPlan plan =
      protean::plan_of(sizes, spec().vocab, kBlockTokens, static_cast<unsigned>(++last_step_));
  plan.id = StepId{last_step_};
  return plan;
}

Result<double> StepRig::time_s(const StepSizes& sizes) {
  StepPlan plan = plan_of(sizes);
  std::vector<StepResult> results;
  const double seconds = stopwatch_.time_s([&] {
    worker_->start(std::move(plan));
    results = results_.pop_all();
  });
  if (results.front().failure) {
    return *results.front().failure;
  }
  return seconds;
}

}  // namespace protean

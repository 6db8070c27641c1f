#include "replica/step_costs.h"

#include "base/log.h"
#include "cost/configuration_cost.h"
#include "device/cpu/matmul.h"
#include "host/machine.h"
#include "model/variant_store.h"

namespace protean {
namespace {

std::string_view name_of(cpu::MatmulIsa isa) {
  switch (isa) {
    case cpu::MatmulIsa::kAmx:
      return "AMX";
    case cpu::MatmulIsa::kDot:
      return "AVX-512 BF16";
    default:
      return "vectors";
  }
}

std::string summary_of(const Fingerprint& found) {
  std::string text;
  for (const ModelEstimate& model : found.models) {
    text += fmt::format("{}{}: {:.1f} ms for a prompt of {} tokens, {:.2f} ms a token",
                        text.empty() ? "" : "; ", to_string(model.precision),
                        model.latency.ttft_us / 1000, found.prompt_tokens,
                        model.latency.tpot_us / 1000);
  }
  return text;
}

}  // namespace

std::string processor_name() {
  return fmt::format("{}, {}", cpu_name(), name_of(cpu::best_isa()));
}

std::filesystem::path profile_directory(const StepCostSource& source) {
  return source.directory.empty() ? default_variant_directory() : source.directory;
}

Result<StepCostKey> step_cost_key(const StepCostSource& source, const ModelSpec& spec,
                                  const FingerprintOptions& options) {
  const auto model = identify_model(source.model, spec);
  if (!model.ok()) {
    return model.error();
  }
  return StepCostKey{.model = *model,
                     .cpu = processor_name(),
                     .threads = options.cpus.threads,
                     .kv = options.kv.precision,
                     .small_pages = options.page_bytes > 0,
                     .version = source.version};
}

Result<MachineStepCost> kept_step_cost(const StepCostSource& source, const ModelSpec& spec,
                                       const FingerprintOptions& options) {
  const auto key = step_cost_key(source, spec, options);
  if (!key.ok()) {
    return key.error();
  }
  const std::filesystem::path directory = profile_directory(source);
  if (!ProfileDatabase::exists(directory)) {
    return ProfileDatabase::never_measured(*key);
  }
  const auto database = ProfileDatabase::open(directory);
  if (!database.ok()) {
    return database.error();
  }
  return (*database)->load(*key, options.layers);
}

Result<Fingerprint> learn_step_cost(const StepCostSource& source, const Checkpoint& checkpoint,
                                    const FingerprintOptions& options, std::string* remark) {
  const auto key = step_cost_key(source, checkpoint.spec(), options);
  const auto database = key.ok() ? ProfileDatabase::open(profile_directory(source)) : key.error();
  FingerprintOptions resumed = options;
  if (database.ok()) {
    resumed.kept_us = [&](const std::string& step) {
      auto times = (*database)->step_times(*key, step);
      return times.ok() ? *std::move(times) : std::vector<double>();
    };
  }
  // One that pauses takes long enough to be interrupted. What cannot be kept is measured again.
  if (database.ok() && options.harvest.await_turn) {
    resumed.keep_us = [&](const std::string& step, double us) {
      (void)(*database)->keep_step(*key, step, us);
    };
  }
  auto found = measure_fingerprint(checkpoint, resumed);
  if (!found.ok()) {
    return found;
  }
  const auto keep = [&]() -> Status {
    if (!database.ok()) {
      return database.error();
    }
    if (found->disturbed_steps > 0) {
      return make_error(ErrorCode::kUnavailable,
                        "requests came whenever {} of its steps were timed",
                        found->disturbed_steps);
    }
    // What is saved replaces a cost, whose sums still hold if none were measured this time.
    if (const auto before = (*database)->load(*key, options.layers); before.ok()) {
      add_sums(before->cost, found->cost);
    }
    Status saved = (*database)->save(*key, {.cpu = key->cpu,
                                            .threads = key->threads,
                                            .origin = StepCostOrigin::kFingerprint,
                                            .cost = found->cost});
    if (saved.ok()) {
      (void)(*database)->forget_steps(*key);  // times that stay are never read
    }
    return saved;
  };
  if (const Status kept = keep(); !kept.ok()) {
    *remark = kept.error().message;
  }
  return found;
}

Status forget_step_times(const StepCostSource& source, const ModelSpec& spec,
                         const FingerprintOptions& options) {
  const auto key = step_cost_key(source, spec, options);
  const auto database = key.ok() ? ProfileDatabase::open(profile_directory(source)) : key.error();
  return database.ok() ? (*database)->forget_steps(*key) : Status(database.error());
}

Result<StepCost> known_step_cost(const StepCostSource& source, const Checkpoint& checkpoint,
                                 const FingerprintOptions& options) {
  const auto kept = kept_step_cost(source, checkpoint.spec(), options);
  if (kept.ok() &&
      (!measures_sums(options, checkpoint.spec()) || knows_sums(kept->cost, options.layers))) {
    log::info("costs of steps are known from {}", kept->origin == StepCostOrigin::kFingerprint
                                                      ? "an earlier fingerprint"
                                                      : "`protean profile --steps`");
    return kept->cost;
  }
  std::string remark;
  const auto found = learn_step_cost(source, checkpoint, options, &remark);
  if (!found.ok() && kept.ok()) {
    log::warning("sums among devices are not measured: {}", found.error().message);
    return kept->cost;
  }
  if (!found.ok()) {
    return found.error();
  }
  if (found->kept_times > 0) {
    log::info("the fingerprint went on where an earlier one stopped: {} times of steps were kept",
              found->kept_times);
  }
  log::info("fingerprint made in {:.1f} s: {}", found->seconds, summary_of(*found));
  if (!remark.empty()) {
    log::warning("{}: the fingerprint is made again when it is next needed", remark);
    return found->cost;
  }
  // Times of the whole model are preferred, and know no sums.
  const auto preferred = kept_step_cost(source, checkpoint.spec(), options);
  return preferred.ok() ? preferred->cost : found->cost;
}

}  // namespace protean

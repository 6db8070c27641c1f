#include "measure/step_profile.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "cost/pages.h"
#include "cost/step_work.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "measure/fingerprint_check.h"
#include "measure/microbatch_check.h"
#include "measure/profiled_steps.h"
#include "measure/step_rig.h"
#include "measure/stopwatch.h"
#include "model/profile_database.h"
#include "terminal/progress.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr int kLeastReportedTokens = 8;  // tokens of the shortest step whose error is reported

// A step that the cost model was not fitted to.
struct CheckedStep {
  std::string name;
  std::string layers;  // precision_label()
  double measured_us = 0;
  double predicted_us = 0;
};

struct StepProfile {
  MachineStepCost cost;
  int fitted_steps = 0;
  PredictionError fitted;  // error on these
  std::vector<CheckedStep> held_out;
  double seconds = 0;       // time of timing steps
  double load_seconds = 0;  // time of packing and loading the model before
  std::string kept;         // where it is saved, or why not
  MicrobatchCheck microbatches;
  std::optional<FingerprintCheck> fingerprint;
};

// The precisions of a form that is timed.
struct TimedForm {
  std::vector<LayerPrecision> layers;
  Precision embeddings = Precision::kBf16;
};

TimedForm uniform(const ModelSpec& spec, Precision precision) {
  return {{static_cast<std::size_t>(spec.layers), {precision, precision}},
          default_embeddings_precision(precision)};
}

// Mixes whole layers and halves at both precisions, under the LM head of the higher one.
TimedForm mixed(const ModelSpec& spec, Precision high, Precision low) {
  TimedForm form{.embeddings = default_embeddings_precision(high)};
  for (int layer = 0; layer < spec.layers; ++layer) {
    form.layers.push_back({layer % 3 == 2 ? low : high, layer % 3 == 0 ? high : low});
  }
  return form;
}

// Other load only slows steps down, so the fastest run describes the machine best. With both cores
// busy, models fitted to minima had half the error of models fitted to medians.
double fastest(const std::vector<double>& times) {
  return *std::min_element(times.begin(), times.end());
}

struct Measurements {
  std::vector<TimedStep> fitted;
  std::vector<TimedStep> held_out;
  std::vector<CheckedStep> checked;  // one for each of held_out
};

// Times every step in every form. Each round goes through all of them, so that a temporary load on
// the machine does not affect one of them alone.
class StepProfiler {
 public:
  StepProfiler(StepRig& rig, std::vector<NamedStep> steps, std::vector<TimedForm> forms, int repeat)
      : rig_(rig),
        steps_(std::move(steps)),
        forms_(std::move(forms)),
        repeat_(repeat),
        times_s_(steps_.size() * forms_.size()) {}

  // Times all steps in each form, `repeat` rounds. Steps of the last form are held out of the fit.
  Result<Measurements> measure() {
    const auto bar = count_bar("measuring", "rounds of steps");
    const std::int64_t total = std::int64_t{repeat_} * std::ssize(forms_);
    std::int64_t done = 0;
    for (int round = 0; round < repeat_; ++round) {
      for (std::size_t form = 0; form < forms_.size(); ++form) {
        if (const Status timed = time_form(form); !timed.ok()) {
          return timed.error();
        }
        bar(++done, total);
      }
    }
    return collected();
  }

 private:
  Status time_form(std::size_t form) {
    if (Status changed = rig_.become(forms_[form].layers, forms_[form].embeddings); !changed.ok()) {
      return changed;
    }
    if (const auto warm = rig_.time_s(steps_.front().sizes); !warm.ok()) {
      return warm.error();
    }
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      // Short steps run several times, so that one preemption by the system does not decide.
      constexpr double kLeastS = 4e-3;
      double sum_s = 0;
      for (int run = 0; run < 8 && (run == 0 || sum_s < kLeastS); ++run) {
        const auto seconds = rig_.time_s(steps_[i].sizes);
        if (!seconds.ok()) {
          return seconds.error();
        }
        sum_s += *seconds;
        times_s_[form * steps_.size() + i].push_back(*seconds);
      }
    }
    return {};
  }

  Measurements collected() {
    Measurements all;
    for (std::size_t form = 0; form < forms_.size(); ++form) {
      Form described = rig_.form();
      described.layer_precision = forms_[form].layers;
      described.embeddings = forms_[form].embeddings;
      const StepPrecision precision = step_precision(rig_.spec(), described);
      for (std::size_t i = 0; i < steps_.size(); ++i) {
        const TimedStep step{work_of(rig_.plan_of(steps_[i].sizes), rig_.spec()), precision,
                             1e6 * fastest(times_s_[form * steps_.size() + i])};
        const bool is_fitted = steps_[i].fitted && form + 1 < forms_.size();
        if (is_fitted) {
          all.fitted.push_back(step);
        } else if (!steps_[i].fitted) {
          all.held_out.push_back(step);
          all.checked.push_back({steps_[i].name, precision_label(described), step.us, 0});
        }
      }
    }
    return all;
  }

  StepRig& rig_;
  const std::vector<NamedStep> steps_;
  const std::vector<TimedForm> forms_;
  const int repeat_;
  std::vector<std::vector<double>> times_s_;  // by form, then step
};

Result<std::vector<Precision>> parse_precisions(const std::vector<std::string>& names) {
  std::vector<Precision> precisions;
  for (const std::string& name : names) {
    const auto precision = parse_precision(name);
    if (!precision.ok() || *precision == Precision::kF32 ||
        std::find(precisions.begin(), precisions.end(), *precision) != precisions.end()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--step-precisions {}: use bf16, s24, w8, w4, w3, w8a8, w8a7 or w4a8, each "
                        "once, with commas "
                        "between",
                        name);
    }
    precisions.push_back(*precision);
  }
  return precisions;
}

Result<std::unique_ptr<StepRig>> make_rig(const StepProfileOptions& options, const CpuShare& cpus,
                                          const std::vector<Precision>& precisions,
                                          const std::vector<NamedStep>& steps) {
  StepRigOptions rig{.model = options.source.model,
                     .variant_cache = options.source.directory,
                     .precisions = precisions,
                     .cpus = cpus,
                     .cpu_time = options.cpu_time};
  for (const NamedStep& named : steps) {
    rig.steps.push_back(named.sizes);
  }
  return StepRig::create(rig);
}

// Returns a power of two, since sizes are fractions of it.
Result<int> longest_of(const StepProfileOptions& options) {
  const auto checkpoint = open_checkpoint(options.source.model);
  if (!checkpoint.ok()) {
    return checkpoint.error();
  }
  const int most = std::min(options.longest, (*checkpoint)->spec().max_context);
  int longest = 128;
  if (most < longest) {
    return make_error(ErrorCode::kInvalidArgument,
                      "steps of up to {} tokens say nothing of longer ones: {} are needed", most,
                      longest);
  }
  while (longest * 2 <= most) {
    longest *= 2;
  }
  return longest;
}

// Returns what a fingerprint of these options needs to know.
Result<FingerprintOptions> fingerprint_options(const StepProfileOptions& options,
                                               const ModelSpec& spec) {
  auto precisions = parse_precisions(options.precisions);
  const auto cpus = choose_cpus(this_machine(), options.compute);
  if (!precisions.ok() || !cpus.ok()) {
    return precisions.ok() ? cpus.error() : precisions.error();
  }
  std::sort(precisions->begin(), precisions->end());
  return FingerprintOptions{.layers = *precisions,
                            .kv = {.precision = default_kv_precision(precisions->front())},
                            .page_bytes = page_bytes_of_pool(page_bytes_for(spec)),
                            .cpus = *cpus};
}

struct LearntFingerprint {
  Fingerprint found;
  std::string kept;
};

Result<LearntFingerprint> learn_fingerprint(const StepProfileOptions& options) {
  const auto checkpoint = open_checkpoint(options.source.model);
  if (!checkpoint.ok()) {
    return checkpoint.error();
  }
  const auto wanted = fingerprint_options(options, (*checkpoint)->spec());
  if (!wanted.ok()) {
    return wanted.error();
  }
  std::string remark;
  auto found = learn_step_cost(options.source, **checkpoint, *wanted, &remark);
  if (!found.ok()) {
    return found.error();
  }
  return LearntFingerprint{*std::move(found),
                           remark.empty() ? "kept in " + profile_directory(options.source).string()
                                          : "not kept: " + remark};
}

// Saves the cost model of the whole model. Returns where, or why it could not be; that is not an
// error, since the result is printed too.
std::string keep(const StepProfileOptions& options, const ModelSpec& spec,
                 const MachineStepCost& cost) {
  const auto saved = [&]() -> Status {
    const auto wanted = fingerprint_options(options, spec);
    if (!wanted.ok()) {
      return wanted.error();
    }
    const auto key = step_cost_key(options.source, spec, *wanted);
    if (!key.ok()) {
      return key.error();
    }
    const auto database = ProfileDatabase::open(profile_directory(options.source));
    return database.ok() ? (*database)->save(*key, cost) : Status(database.error());
  }();
  return saved.ok() ? "kept in " + profile_directory(options.source).string()
                    : "not kept: " + saved.error().message;
}

// Times the whole model and fits the cost model to it.
Result<StepProfile> measure_whole(const StepProfileOptions& options, const CpuShare& cpus,
                                  const std::optional<LearntFingerprint>& fingerprint) {
  const auto precisions = parse_precisions(options.precisions);
  const auto longest = longest_of(options);
  if (!precisions.ok() || !longest.ok()) {
    return precisions.ok() ? longest.error() : precisions.error();
  }
  std::vector<NamedStep> steps = fitted_steps(*longest);
  for (NamedStep& step : held_out_steps(*longest)) {
    steps.push_back(std::move(step));
  }
  const Stopwatch wall(false, 1);
  const double load_s = wall.now_s();
  const auto rig = make_rig(options, cpus, *precisions, steps);
  if (!rig.ok()) {
    return rig.error();
  }
  std::vector<TimedForm> forms;
  for (const Precision precision : *precisions) {
    forms.push_back(uniform((*rig)->spec(), precision));
  }
  forms.push_back(mixed((*rig)->spec(), precisions->front(), precisions->back()));
  const double start_s = wall.now_s();
  const auto measured =
      StepProfiler(**rig, std::move(steps), std::move(forms), options.repeat).measure();
  if (!measured.ok()) {
    return measured.error();
  }
  const auto cost = fit_step_cost(measured->fitted);
  if (!cost.ok()) {
    return cost.error();
  }
  StepProfile profile{
      .cost = {.cpu = processor_name(),
               .threads = cpus.threads,
               .cpu_time = options.cpu_time,
               .cost = *cost,
               .error = prediction_error(*cost, measured->held_out, kLeastReportedTokens)},
      .fitted_steps = static_cast<int>(measured->fitted.size()),
      .fitted = prediction_error(*cost, measured->fitted),
      .held_out = measured->checked,
      .seconds = wall.now_s() - start_s,
      .load_seconds = start_s - load_s,
      .microbatches = check_microbatches(*cost, measured->fitted, measured->held_out)};
  for (std::size_t i = 0; i < profile.held_out.size(); ++i) {
    const TimedStep& step = measured->held_out[i];
    profile.held_out[i].predicted_us = predict_us(*cost, step.work, step.precision);
  }
  if (fingerprint) {
    std::vector<TimedStep> steps = measured->fitted;
    steps.insert(steps.end(), measured->held_out.begin(), measured->held_out.end());
    profile.fingerprint = check_fingerprint(fingerprint->found, steps);
  }
  profile.kept = keep(options, (*rig)->spec(), profile.cost);
  return profile;
}

Result<StepProfile> measure(const StepProfileOptions& options) {
  const auto cpus = choose_cpus(this_machine(), options.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  std::optional<LearntFingerprint> fingerprint;
  if (options.fingerprint) {
    auto learnt = learn_fingerprint(options);
    if (!learnt.ok()) {
      return learnt.error();
    }
    fingerprint = *std::move(learnt);
  }
  return measure_whole(options, *cpus, fingerprint);
}

Result<MachineStepCost> load(const StepProfileOptions& options) {
  const auto checkpoint = open_checkpoint(options.source.model);
  if (!checkpoint.ok()) {
    return checkpoint.error();
  }
  auto wanted = fingerprint_options(options, (*checkpoint)->spec());
  if (!wanted.ok()) {
    return wanted.error();
  }
  wanted->layers.clear();  // whatever was measured
  return kept_step_cost(options.source, (*checkpoint)->spec(), *wanted);
}

std::string to_text(const MachineStepCost& kept) {
  const StepCost& cost = kept.cost;
  std::string text = fmt::format(
      "{}, {} thread{}, by {} time\n\n"
      "{:<10}{:>12}{:>26}{:>20}{:>22}\n",
      kept.cpu, kept.threads, kept.threads == 1 ? "" : "s", kept.cpu_time ? "processor" : "wall",
      "layers", "us a step", "us a token up to", "us a token beyond", "us a tile");
  for (const Precision precision : kPrecisions) {
    const LayersCost& of = cost.of(precision);
    if (of.is_known()) {
      text += fmt::format("{:<10}{:>12.2f}{:>26}{:>20.3f}{:>22}\n", to_string(precision),
                          of.step_us, fmt::format("{:.3f} to {:.0f}", of.token_us, of.bend_tokens),
                          of.more_token_us,
                          fmt::format("{:.3f} of {:.0f}", of.tile_us, of.tile_tokens));
    }
  }
  text += fmt::format("{:<10}{:>12}{:>26}\n", "LM head", "us a step", "us a row of logits");
  for (const Precision precision : kPrecisions) {
    const LogitsCost& of = cost.logits_at(precision);
    if (of.is_known()) {
      text +=
          fmt::format("{:<10}{:>12.2f}{:>26.3f}\n", to_string(precision), of.step_us, of.row_us);
    }
  }
  text += fmt::format(
      "others, us: {:.3f} a step, {:.3f} a token, {:.3f} a sequence, {:.6f} a token of KV read, "
      "{:.6f} a token of context seen\n",
      cost.fixed_us, cost.token_us, cost.sequence_us, cost.kv_token_us, cost.context_token_us);
  if (kept.origin == StepCostOrigin::kFingerprint) {
    return text + "learned from a fingerprint\n";
  }
  return text + fmt::format(
                    "on {} held-out steps of {} tokens or more: mean error {:.1f} %, worst {:.1f} "
                    "%\n",
                    kept.error.steps, kLeastReportedTokens, kept.error.mean * 100,
                    kept.error.worst * 100);
}

std::string to_text(const StepProfile& profile) {
  std::string text = fmt::format("{:<28}{:<20}{:>14}{:>14}{:>9}\n", "held-out step", "layers",
                                 "measured us", "predicted us", "error %");
  for (const CheckedStep& step : profile.held_out) {
    text += fmt::format("{:<28}{:<20}{:>14.1f}{:>14.1f}{:>9.1f}\n", step.name, step.layers,
                        step.measured_us, step.predicted_us,
                        100 * (step.predicted_us / step.measured_us - 1));
  }
  text += "\n" + to_text(profile.cost) +
          fmt::format(
              "fitted on {} others (mean error {:.1f} %) in {:.1f} s after {:.1f} s of "
              "loading; {}\n",
              profile.fitted_steps, profile.fitted.mean * 100, profile.seconds,
              profile.load_seconds, profile.kept) +
          to_text(profile.microbatches);
  return profile.fingerprint ? text + "\n" + to_text(*profile.fingerprint) : text;
}

json::object to_json(const StepProfile& profile) {
  json::object object = to_json(profile.cost);
  object["fitted_steps"] = profile.fitted_steps;
  object["fitted_mean_error"] = profile.fitted.mean;
  object["seconds"] = profile.seconds;
  object["load_seconds"] = profile.load_seconds;
  object["kept"] = profile.kept;
  json::array held_out;
  for (const CheckedStep& step : profile.held_out) {
    held_out.push_back(json::object{{"step", step.name},
                                    {"layers", step.layers},
                                    {"measured_us", step.measured_us},
                                    {"predicted_us", step.predicted_us}});
  }
  object["held_out"] = std::move(held_out);
  object["microbatches"] = to_json(profile.microbatches);
  if (profile.fingerprint) {
    object["fingerprint"] = to_json(*profile.fingerprint);
  }
  return object;
}

}  // namespace

Result<StepReport> profile_steps(const StepProfileOptions& options) {
  const auto profile = measure(options);
  if (!profile.ok()) {
    return profile.error();
  }
  return StepReport{to_text(*profile), to_json(*profile)};
}

Result<StepReport> profile_fingerprint(const StepProfileOptions& options) {
  const auto learnt = learn_fingerprint(options);
  if (!learnt.ok()) {
    return learnt.error();
  }
  const FingerprintCheck unchecked = check_fingerprint(learnt->found, {});
  json::object object = to_json(unchecked);
  object["kept"] = learnt->kept;
  return StepReport{to_text(unchecked) + learnt->kept + "\n", std::move(object)};
}

Result<StepReport> kept_steps(const StepProfileOptions& options) {
  const auto kept = load(options);
  if (!kept.ok()) {
    return kept.error();
  }
  return StepReport{to_text(*kept), to_json(*kept)};
}

}  // namespace protean

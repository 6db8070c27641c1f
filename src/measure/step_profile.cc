#include "measure/step_profile.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <memory>
#include <utility>

#include "cost/step_work.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "measure/keep_learnt.h"
#include "measure/step_rig.h"
#include "measure/stopwatch.h"
#include "model/step_cost_file.h"
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
  double seconds = 0;
  std::string kept;  // where it is saved, or why not
};

struct NamedShape {
  std::string name;
  StepShape shape;
  bool fitted = false;
};

// The precisions of a form that is timed.
struct TimedForm {
  std::vector<LayerPrecision> layers;
  Precision embeddings = Precision::kBf16;
};

StepShape inner_chunk(int tokens, int context) {
  StepShape shape = prefill_shape(tokens, context);
  shape.sampled = false;
  return shape;
}

StepShape inner_chunks(int sequences, int tokens) {
  return {.slices = std::vector<SliceShape>(static_cast<std::size_t>(sequences),
                                            {.context = 0, .tokens = tokens}),
          .sampled = false};
}

StepShape decode_with_chunk(int sequences, int context, const SliceShape& chunk) {
  StepShape shape = decode_shape(sequences, context);
  shape.slices.push_back(chunk);
  return shape;
}

// Returns shapes that differ in everything that a term of the cost model depends on: rows,
// contexts, sequences, and if logits are needed.
std::vector<NamedShape> fitted_shapes(int longest) {
  std::vector<NamedShape> shapes;
  const auto add = [&](std::string name, StepShape shape) {
    shapes.push_back({std::move(name), std::move(shape), true});
  };
  for (const int sequences : {1, 2, 4, 6, 8, 12, 16, 20, 32, 40, 64}) {
    add("decode", decode_shape(sequences, longest / 32));
  }
  for (const int sequences : {1, 4, 8, 32}) {
    add("decode", decode_shape(sequences, longest / 2));
  }
  add("decode", decode_shape(16, longest - 1));
  for (int tokens = longest; tokens >= 8; tokens /= 2) {
    add("prompt", prefill_shape(tokens));
  }
  for (const int tokens : {20, 36}) {
    add("prompt", prefill_shape(tokens));
  }
  for (const int tokens : {longest / 64, longest / 16, longest / 4}) {
    add("chunk", inner_chunk(tokens, longest - longest / 4));
  }
  add("chunks", inner_chunks(4, 8));
  add("chunks", inner_chunks(8, longest / 64));
  add("mixed", decode_with_chunk(16, longest / 2, {.context = 0, .tokens = longest / 16}));
  return shapes;
}

// Returns shapes between and beyond the fitted ones.
std::vector<NamedShape> held_out_shapes(int longest) {
  const auto at = [longest](int of_64) { return longest * of_64 / 64; };
  return {{"decode 3", decode_shape(3, at(2))},
          {"decode 10", decode_shape(10, at(16))},
          {"decode 14", decode_shape(14, at(2))},
          {"decode 24", decode_shape(24, at(3))},
          {"decode 48", decode_shape(48, at(24))},
          {fmt::format("prompt {}", at(6)), prefill_shape(at(6))},
          {fmt::format("prompt {}", at(12)), prefill_shape(at(12))},
          {fmt::format("prompt {}", at(24)), prefill_shape(at(24))},
          {fmt::format("prompt {}", at(48)), prefill_shape(at(48))},
          {fmt::format("{} after {}", at(3), at(16)), inner_chunk(at(3), at(16))},
          {fmt::format("{} after {}", at(8), at(32)), inner_chunk(at(8), at(32))},
          {fmt::format("decode 8 + {}", at(6)),
           decode_with_chunk(8, at(16), {.context = 0, .tokens = at(6)})},
          {fmt::format("decode 24 + {} after {}", at(4), at(32)),
           decode_with_chunk(24, at(4), {.context = at(32), .tokens = at(4)})}};
}

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

// Times every shape at every form. Rounds go through all of them, so that a temporary load on the
// machine does not affect one of them alone.
class StepProfiler {
 public:
  StepProfiler(StepRig& rig, std::vector<NamedShape> shapes, std::vector<TimedForm> forms,
               int repeat)
      : rig_(rig),
        shapes_(std::move(shapes)),
        forms_(std::move(forms)),
        repeat_(repeat),
        times_s_(shapes_.size() * forms_.size()) {}

  // Steps of the last form are all held out.
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
    if (const auto warm = rig_.time_s(shapes_.front().shape); !warm.ok()) {
      return warm.error();
    }
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      // Short steps run several times, so that one preemption by the system does not decide.
      constexpr double kLeastS = 4e-3;
      double sum_s = 0;
      for (int run = 0; run < 8 && (run == 0 || sum_s < kLeastS); ++run) {
        const auto seconds = rig_.time_s(shapes_[i].shape);
        if (!seconds.ok()) {
          return seconds.error();
        }
        sum_s += *seconds;
        times_s_[form * shapes_.size() + i].push_back(*seconds);
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
      for (std::size_t i = 0; i < shapes_.size(); ++i) {
        const TimedStep step{work_of(rig_.plan_of(shapes_[i].shape), rig_.spec()), precision,
                             1e6 * fastest(times_s_[form * shapes_.size() + i])};
        const bool is_fitted = shapes_[i].fitted && form + 1 < forms_.size();
        if (is_fitted) {
          all.fitted.push_back(step);
        } else if (!shapes_[i].fitted) {
          all.held_out.push_back(step);
          all.checked.push_back({shapes_[i].name, precision_label(described), step.us, 0});
        }
      }
    }
    return all;
  }

  StepRig& rig_;
  const std::vector<NamedShape> shapes_;
  const std::vector<TimedForm> forms_;
  const int repeat_;
  std::vector<std::vector<double>> times_s_;  // by form, then shape
};

Result<std::vector<Precision>> parse_precisions(const std::vector<std::string>& names) {
  std::vector<Precision> precisions;
  for (const std::string& name : names) {
    const auto precision = parse_precision(name);
    if (!precision.ok() || *precision == Precision::kF32 ||
        std::find(precisions.begin(), precisions.end(), *precision) != precisions.end()) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "--step-precisions {}: use bf16, w8, w4, w3, w8a8, w8a7 or w4a8, each once, with commas "
          "between",
          name);
    }
    precisions.push_back(*precision);
  }
  return precisions;
}

Result<std::unique_ptr<StepRig>> make_rig(const StepProfileOptions& options, const CpuShare& cpus,
                                          const std::vector<Precision>& precisions,
                                          const std::vector<NamedShape>& shapes) {
  StepRigOptions rig{.model = options.model,
                     .variant_cache = options.variant_cache,
                     .precisions = precisions,
                     .cpus = cpus,
                     .cpu_time = options.cpu_time};
  for (const NamedShape& named : shapes) {
    rig.shapes.push_back(named.shape);
  }
  return StepRig::create(rig);
}

// Returns a power of two, since shapes are fractions of it.
Result<int> longest_of(const StepProfileOptions& options) {
  const auto checkpoint = open_checkpoint(options.model);
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

Result<StepProfile> measure(const StepProfileOptions& options) {
  const auto precisions = parse_precisions(options.precisions);
  const auto longest = longest_of(options);
  const auto cpus = choose_cpus(this_machine(), options.compute);
  if (!precisions.ok() || !longest.ok()) {
    return precisions.ok() ? longest.error() : precisions.error();
  }
  if (!cpus.ok()) {
    return cpus.error();
  }
  std::vector<NamedShape> shapes = fitted_shapes(*longest);
  for (NamedShape& shape : held_out_shapes(*longest)) {
    shapes.push_back(std::move(shape));
  }
  const auto rig = make_rig(options, *cpus, *precisions, shapes);
  if (!rig.ok()) {
    return rig.error();
  }
  std::vector<TimedForm> forms;
  for (const Precision precision : *precisions) {
    forms.push_back(uniform((*rig)->spec(), precision));
  }
  forms.push_back(mixed((*rig)->spec(), precisions->front(), precisions->back()));
  const Stopwatch wall(false, 1);
  const double start_s = wall.now_s();
  const auto measured =
      StepProfiler(**rig, std::move(shapes), std::move(forms), options.repeat).measure();
  if (!measured.ok()) {
    return measured.error();
  }
  const auto cost = fit_step_cost(measured->fitted);
  if (!cost.ok()) {
    return cost.error();
  }
  StepProfile profile{
      .cost = {.cpu = cpu_name(),
               .threads = cpus->threads,
               .cpu_time = options.cpu_time,
               .cost = *cost,
               .error = prediction_error(*cost, measured->held_out, kLeastReportedTokens)},
      .fitted_steps = static_cast<int>(measured->fitted.size()),
      .fitted = prediction_error(*cost, measured->fitted),
      .held_out = measured->checked,
      .seconds = wall.now_s() - start_s};
  for (std::size_t i = 0; i < profile.held_out.size(); ++i) {
    const TimedStep& step = measured->held_out[i];
    profile.held_out[i].predicted_us = predict_us(*cost, step.work, step.precision);
  }
  const VariantStore& variants = (*rig)->variants();
  profile.kept = keep_learnt(variants, [&](const std::filesystem::path& directory) {
    return save_step_cost(directory, variants.model(), profile.cost);
  });
  return profile;
}

Result<MachineStepCost> load(const StepProfileOptions& options) {
  const auto cpus = choose_cpus(this_machine(), options.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  auto checkpoint = open_checkpoint(options.model);
  if (!checkpoint.ok()) {
    return checkpoint.error();
  }
  const auto variants = VariantStore::open({*std::move(checkpoint), options.model}, {},
                                           {.directory = options.variant_cache, .precisions = {}});
  if (!variants.ok()) {
    return variants.error();
  }
  return load_step_cost((*variants)->model_directory(),
                        {(*variants)->model(), cpu_name(), cpus->threads});
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
  return text + fmt::format(
                    "others, us: {:.3f} a sequence, {:.6f} a token of KV read, {:.6f} a token "
                    "of context seen\n"
                    "on {} held-out steps of {} tokens or more: mean error {:.1f} %, worst {:.1f} "
                    "%\n",
                    cost.sequence_us, cost.kv_token_us, cost.context_token_us, kept.error.steps,
                    kLeastReportedTokens, kept.error.mean * 100, kept.error.worst * 100);
}

std::string to_text(const StepProfile& profile) {
  std::string text = fmt::format("{:<28}{:<20}{:>14}{:>14}{:>9}\n", "held-out step", "layers",
                                 "measured us", "predicted us", "error %");
  for (const CheckedStep& step : profile.held_out) {
    text += fmt::format("{:<28}{:<20}{:>14.1f}{:>14.1f}{:>9.1f}\n", step.name, step.layers,
                        step.measured_us, step.predicted_us,
                        100 * (step.predicted_us / step.measured_us - 1));
  }
  return text + "\n" + to_text(profile.cost) +
         fmt::format("fitted on {} others (mean error {:.1f} %) in {:.1f} s; {}\n",
                     profile.fitted_steps, profile.fitted.mean * 100, profile.seconds,
                     profile.kept);
}

json::object to_json(const StepProfile& profile) {
  json::object object = to_json(profile.cost);
  object["fitted_steps"] = profile.fitted_steps;
  object["fitted_mean_error"] = profile.fitted.mean;
  object["seconds"] = profile.seconds;
  object["kept"] = profile.kept;
  json::array held_out;
  for (const CheckedStep& step : profile.held_out) {
    held_out.push_back(json::object{{"step", step.name},
                                    {"layers", step.layers},
                                    {"measured_us", step.measured_us},
                                    {"predicted_us", step.predicted_us}});
  }
  object["held_out"] = std::move(held_out);
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

Result<StepReport> kept_steps(const StepProfileOptions& options) {
  const auto kept = load(options);
  if (!kept.ok()) {
    return kept.error();
  }
  return StepReport{to_text(*kept), to_json(*kept)};
}

}  // namespace protean

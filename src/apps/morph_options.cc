#include "apps/morph_options.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "apps/options.h"
#include "base/log.h"
#include "base/units.h"
#include "control/form_path.h"
#include "control/policy_options.h"
#include "cost/memory.h"
#include "host/machine.h"
#include "measure/integer_speed.h"
#include "model/swap_profile.h"
#include "replica/variant_sources.h"

namespace protean {
namespace {

// Returns what `protean profile` measured of the weights that are to be used at these precisions
// and at those that are stored alike, the lowest first.
std::vector<SwapProfile> kept_profiles(const VariantStore& variants,
                                       std::span<const Precision> lower) {
  std::vector<Precision> precisions;
  for (std::size_t i = lower.size(); i-- > 0 && !variants.model_directory().empty();) {
    precisions.push_back(lower[i]);
    precisions.push_back(weight_only(lower[i]));
  }
  precisions.erase(std::unique(precisions.begin(), precisions.end()), precisions.end());
  std::vector<SwapProfile> profiles;
  for (const Precision precision : precisions) {
    for (const bool halves : {true, false}) {
      auto profile = load_swap_profile(
          variants.model_directory(),
          {variants.model(), variants.source_at(precision), precision, halves}, variants.spec());
      if (profile.ok()) {
        profiles.push_back(*std::move(profile));
      } else if (profile.error().code != ErrorCode::kNotFound) {
        log::warning(
            "a profile of layers is left out, and without one they are lowered front to back: {}",
            profile.error().message);
      }
    }
  }
  return profiles;
}

// Returns the order of the first profile, or front to back if there is none. If halves were not
// measured, the order of whole layers may be known.
std::vector<SwapTarget> profiled_order(const std::vector<SwapProfile>& profiles, int layers,
                                       bool halves) {
  const auto found =
      std::find_if(profiles.begin(), profiles.end(),
                   [&](const SwapProfile& profile) { return profile.halves == halves; });
  if (found != profiles.end()) {
    return found->order;
  }
  if (!halves) {
    return swap_targets(layers, false);
  }
  std::vector<SwapTarget> order;
  for (const SwapTarget& layer : profiled_order(profiles, layers, false)) {
    for (const Component half : halves_of(layer)) {
      order.push_back({layer.layer, half});
    }
  }
  return order;
}

// Returns what halves of layers lose at these precisions: what was measured, else what is typical.
QualityLoss profiled_loss(const std::vector<SwapProfile>& profiles,
                          std::span<const Precision> lower, const ModelSpec& spec) {
  QualityLoss loss = typical_loss();
  for (const Precision precision : lower) {
    const auto measured = [&](Precision at) {
      return std::find_if(profiles.begin(), profiles.end(), [&](const SwapProfile& profile) {
        return profile.precision == at && !profile.kl_nats.empty();
      });
    };
    const auto same = measured(precision);
    const auto found = same != profiles.end() ? same : measured(weight_only(precision));
    if (found != profiles.end()) {
      set_measured(precision, found->precision, found->kl_nats, spec, loss);
    }
  }
  return loss;
}

// Opens the models of --variant. Fails if layers never have their precision.
Result<std::map<Precision, VariantSource>> lower_sources(const std::vector<std::string>& texts,
                                                         const std::vector<Precision>& lower) {
  auto sources = variant_sources(texts);
  if (!sources.ok()) {
    return sources;
  }
  for (const auto& [precision, source] : *sources) {
    if (std::none_of(lower.begin(), lower.end(),
                     [kept = precision.weights](Precision to) { return to.weights == kept; })) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--variant {}={}: no layer ever goes to {}, see --morph-precisions",
                        to_string(precision), source.path.string(), to_string(precision));
    }
  }
  return sources;
}

Result<QualityFloor> quality_floor(const MorphOptions& options) {
  auto floor = parse_quality_floor(options.quality_floor);
  return floor.ok() ? std::move(floor)
                    : make_error(floor.error().code, "--quality-floor: {}", floor.error().message);
}

Result<std::int64_t> variant_cache_bytes(const std::string& text) {
  if (text == "none") {
    return std::numeric_limits<std::int64_t>::max();
  }
  const auto bytes = parse_bytes(text);
  if (!bytes.ok()) {
    return make_error(bytes.error().code, "--variant-cache-size: {}", bytes.error().message);
  }
  return *bytes;
}

MorphRule rule_of(std::string_view name) {
  return name == "paper"    ? MorphRule::kPaper
         : name == "queued" ? MorphRule::kQueued
                            : MorphRule::kPredict;
}

std::string fastest_here() {
  const auto [eight_bits, four_bits] = fastest_precisions();
  return fmt::format("{},{}", to_string(eight_bits), to_string(four_bits));
}

// Returns the precisions below `start` that layers may be lowered to, from most bits to fewest.
Result<std::vector<Precision>> lower_precisions(const MorphOptions& options, Precision start) {
  std::vector<Precision> lower;
  std::istringstream names(options.precisions == "auto" ? fastest_here() : options.precisions);
  for (std::string name; std::getline(names, name, ',');) {
    const auto precision = parse_precision(name);
    if (!precision.ok()) {
      return make_error(precision.error().code, "--morph-precisions: {}",
                        precision.error().message);
    }
    if (weight_bits(*precision) < weight_bits(start)) {
      lower.push_back(*precision);
    }
  }
  std::sort(lower.begin(), lower.end());
  lower.erase(std::unique(lower.begin(), lower.end()), lower.end());
  const auto alike = std::adjacent_find(
      lower.begin(), lower.end(), [](Precision a, Precision b) { return a.weights == b.weights; });
  if (alike != lower.end()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--morph-precisions {}: {} and {} are equally large, give one of them",
                      options.precisions, to_string(*alike), to_string(*std::next(alike)));
  }
  return lower;
}

// What layers may be lowered to, and how much of all that is kept on disk.
struct LowerWeights {
  std::vector<Precision> precisions;
  std::map<Precision, VariantSource> sources;
  std::int64_t most_bytes = 0;
};

Result<LowerWeights> lower_weights(const ModelOptions& model, const MorphOptions& options,
                                   const StoredWeights& stored) {
  const auto most_bytes = variant_cache_bytes(options.variant_cache_size);
  if (!most_bytes.ok()) {
    return most_bytes.error();
  }
  const auto precision = dtype_precision(model.dtype, stored);
  auto lower = precision.ok() ? lower_precisions(options, *precision) : precision.error();
  if (!lower.ok()) {
    return lower.error();
  }
  auto sources = lower_sources(options.variants, *lower);
  if (!sources.ok()) {
    return sources.error();
  }
  return LowerWeights{*std::move(lower), *std::move(sources), *most_bytes};
}

// If only an operator changes the form, variants are not kept on disk: the operator can wait.
// The checkpoint gives full precision quickly, so it is packed last.
Result<std::unique_ptr<VariantStore>> open_store(const LowerWeights& lower,
                                                 const MorphOptions& options,
                                                 const VariantSource& model, const Form& form) {
  std::vector<Precision> kept = lower.precisions;
  std::copy_if(kPrecisions.begin(), kPrecisions.end(), std::back_inserter(kept),
               [&](Precision at) { return layers_at(form, at) > 0; });
  return VariantStore::open(model, lower.sources,
                            {.directory = options.variant_cache,
                             .precisions = options.mode == "off" ? std::vector<Precision>() : kept,
                             .most_bytes = lower.most_bytes,
                             .shards = form.shards});
}

// Returns the policy and its bounds, with layers lowered front to back.
Result<MorphConfig> morph_config(const MorphOptions& options, const ModelSpec& spec,
                                 const Sizing& sizing, const std::vector<Precision>& lower) {
  const auto mode = parse_morph_mode(options.mode);
  if (!mode.ok()) {
    return make_error(mode.error().code, "--morph: {}", mode.error().message);
  }
  const auto floor = quality_floor(options);
  if (!floor.ok()) {
    return floor.error();
  }
  const Precision start = highest_precision(sizing.form);
  MorphConfig config;
  config.mode = *mode;
  config.policy = options_for(*mode);
  config.policy.rule = rule_of(options.rule);
  config.policy.ttft_ns = std::llround(options.slo_ttft_ms * static_cast<double>(kNsPerMs));
  config.policy.tpot_ns = std::llround(options.slo_tpot_ms * static_cast<double>(kNsPerMs));
  config.start = sizing.form;
  config.bounds = {.spec = spec,
                   .budget = sizing.budget,
                   .full = sizing.form,
                   .order = swap_targets(spec.layers, options.halves),
                   .ladder = {start},
                   .floor = *floor,
                   .most_kv_blocks = options.kv ? 0 : sizing.form.kv.blocks,
                   .embeddings_stay = config.policy.rule == MorphRule::kPaper};
  config.bounds.ladder.insert(config.bounds.ladder.end(), lower.begin(), lower.end());
  if (const Status legal = validate(config.bounds); !legal.ok()) {
    return legal.error();
  }
  return config;
}

// Opens the variants of a replica, and takes from their profiles the order in which its layers are
// lowered and what each loses. Changes nothing if it fails.
Status use_variants(const LowerWeights& lower, const MorphOptions& options,
                    const VariantSource& model, ReplicaOptions& replica) {
  auto variants = open_store(lower, options, model, replica.sizing.form);
  if (!variants.ok()) {
    return variants.error();
  }
  const std::vector<SwapProfile> profiles = kept_profiles(**variants, lower.precisions);
  MorphConfig morph = *replica.morph;
  morph.bounds.order = profiled_order(profiles, morph.bounds.spec.layers, options.halves);
  morph.policy.loss = profiled_loss(profiles, lower.precisions, morph.bounds.spec);
  if (Status legal = validate(morph.bounds); !legal.ok()) {
    return legal;
  }
  replica.morph = std::move(morph);
  replica.variants = *std::move(variants);
  return {};
}

}  // namespace

void add_morph_options(CLI::App& app, MorphOptions& options) {
  app.option_defaults()->group("Morphing");
  app.add_option("--morph", options.mode,
                 "Lower the precision of layers, embedding matrix and LM head while that keeps "
                 "requests from being late, and give the memory to KV. The modes differ in how "
                 "much quality a late request is worth: accuracy the least, performance the most. "
                 "off: only if the admin port asks")
      ->type_name("MODE")
      ->check(one_of({"off", "accuracy", "balanced", "performance"}))
      ->capture_default_str();
  app.add_option("--morph-precisions", options.precisions,
                 "Precisions that layers may be lowered to, such as w8,w4,w3 or w8a8,w4a8. auto is "
                 "the fastest pair on this processor; an empty value keeps the form as it is")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--quality-floor", options.quality_floor,
                 "Limit of what the policy lowers: 8layers is at most 8 layers, 6bits a mean of at "
                 "least 6 bits per weight; none is no limit")
      ->type_name("FLOOR")
      ->capture_default_str();
  app.add_option("--slo-ttft-ms", options.slo_ttft_ms,
                 "Target time to first token, in milliseconds: a request beyond it counts as late")
      ->type_name("MS")
      ->check(number_range(1, 3.6e6))
      ->capture_default_str();
  app.add_option("--slo-tpot-ms", options.slo_tpot_ms,
                 "Target time per output token, in milliseconds; 0 is none")
      ->type_name("MS")
      ->check(number_range(0, 3.6e6))
      ->capture_default_str();
  app.add_option("--morph-rule", options.rule,
                 "predict takes the form with the fewest late requests for the quality it loses; "
                 "queued does so as if no more requests arrived, to compare; paper uses "
                 "MorphServe's thresholds")
      ->check(one_of({"predict", "queued", "paper"}))
      ->capture_default_str();
  app.add_flag("--morph-halves", options.halves,
               "Lower the attention and the MLP of a layer one by one");
  app.add_flag("--morph-kv,!--no-morph-kv", options.kv,
               "Give the memory that lower precision frees to KV (default on)");
  add_variant_option(app, options.variants);
  add_variant_cache_option(app, options.variant_cache);
  app.add_option("--variant-cache-size", options.variant_cache_size,
                 "Bound for that folder: if it is exceeded, layers of models that no process uses "
                 "are removed, least recently used first; none is no bound")
      ->type_name("SIZE")
      ->capture_default_str();
}

Result<ReplicaOptions> size_replica(ModelOptions model, bool may_morph, const MorphOptions& options,
                                    const ModelSpec& spec, const Machine& machine) {
  const auto precision = dtype_precision(model.dtype, spec.stored);
  if (!precision.ok()) {
    return precision.error();
  }
  auto lower = lower_precisions(options, *precision);
  if (!lower.ok()) {
    return lower.error();
  }
  const auto floor = quality_floor(options);
  if (!floor.ok()) {
    return floor.error();
  }
  model.may_morph = may_morph;
  if (may_morph) {
    model.ladder = *lower;
  }
  // The longest sequence must fit the lowest form that the policy reaches. What only an operator
  // could make room for counts if the length is given.
  const auto check = [&](Sizing& sizing) -> Status {
    const auto config = morph_config(options, spec, sizing, *lower);
    if (!config.ok()) {
      return config.error();
    }
    const bool off = config->mode == MorphMode::kOff;
    if (off && !is_any_length(model)) {
      return {};
    }
    const Form lowest = off ? sizing.form : form_path(config->bounds).back();
    return fit_length(model, spec, widest_kv_blocks(model, spec, sizing, lowest.kv.blocks), sizing);
  };
  const auto sizing =
      choose_sizing(model, spec, machine, may_morph ? check : std::function<Status(Sizing&)>());
  if (!sizing.ok()) {
    return sizing.error();
  }
  ReplicaOptions replica{.model = model, .sizing = *sizing};
  replica.cost = group_cost(nominal_step_cost(spec), spec, kPrecisions, kAssumedTransfer);
  if (!may_morph) {
    return replica;
  }
  auto config = morph_config(options, spec, *sizing, *lower);
  if (!config.ok()) {
    return config.error();
  }
  replica.morph = *std::move(config);
  return replica;
}

Result<ReplicaOptions> choose_replica(const ModelOptions& model, bool may_morph,
                                      const MorphOptions& options, const ModelFiles& files,
                                      const Machine& machine) {
  const ModelSpec& spec = files.checkpoint->spec();
  const auto lower = lower_weights(model, options, spec.stored);
  if (!lower.ok()) {
    return lower.error();
  }
  auto replica = size_replica(model, may_morph, options, spec, machine);
  if (!replica.ok() || !may_morph) {
    return replica;
  }
  const Status used = use_variants(*lower, options, {files.checkpoint, model.model}, *replica);
  return used.ok() ? std::move(replica) : used.error();
}

Status renew_variants(const ModelOptions& model, const MorphOptions& options,
                      const ModelFiles& files, ReplicaOptions& replica) {
  const auto lower = lower_weights(model, options, files.checkpoint->spec().stored);
  return lower.ok() ? use_variants(*lower, options, {files.checkpoint, model.model}, replica)
                    : lower.error();
}

}  // namespace protean

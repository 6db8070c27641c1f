#include "measure/layer_profile.h"

#include <boost/json/array.hpp>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "host/machine.h"
#include "measure/keep_learnt.h"
#include "model/swap_probe.h"
#include "model/variant_store.h"
#include "quality/swap_order.h"
#include "replica/model_files.h"
#include "replica/variant_sources.h"
#include "terminal/progress.h"

namespace protean {
namespace {

namespace json = boost::json;

using Sequences = std::vector<std::vector<TokenId>>;

enum class Metric { kCosine, kL2 };

double value_of(const Similarity& similarity, Metric metric) {
  return metric == Metric::kCosine ? similarity.cosine : similarity.l2;
}

// Measures one model. The effect of each set of lowered layers is measured once and remembered.
class Profiler {
 public:
  Profiler(SwapProbe& probe, const Sequences& calibration)
      : probe_(probe), calibration_(calibration), alone_(probe.alone(calibration)) {}

  std::vector<TargetSensitivity> alone(Metric metric) const {
    std::vector<TargetSensitivity> targets;
    for (const TargetSimilarity& target : alone_) {
      targets.push_back(
          {value_of(target.transformation, metric), value_of(target.replacement, metric)});
    }
    return targets;
  }

  std::vector<RankedTarget> rank(const ImportanceWeights& weights, Metric metric,
                                 const std::string& what) {
    const auto bar = count_bar(what, "steps");
    std::int64_t done = 0;
    return rank_by_importance(alone(metric), weights, [&](const std::vector<bool>& lowered) {
      auto [found, fresh] = one_more_.try_emplace(lowered);
      if (fresh) {
        found->second = probe_.one_more(calibration_, lowered);
      }
      bar(++done, probe_.targets());
      std::vector<double> values;
      for (const Similarity& similarity : found->second) {
        values.push_back(value_of(similarity, metric));
      }
      return values;
    });
  }

  // `text` must be the same in each call, since results are remembered by set.
  PerplexityOf perplexity_of(const Sequences& text) {
    auto known = std::make_shared<std::map<std::vector<bool>, double>>();
    return [this, &text, known](const std::vector<bool>& lowered) {
      auto [found, fresh] = known->try_emplace(lowered);
      if (fresh) {
        const TextNats score = probe_.score(text, lowered);
        found->second = std::exp(score.nats / static_cast<double>(score.tokens));
      }
      return found->second;
    };
  }

 private:
  SwapProbe& probe_;
  const Sequences& calibration_;
  std::vector<TargetSimilarity> alone_;
  std::map<std::vector<bool>, std::vector<Similarity>> one_more_;
};

std::string name_of(const SwapTarget& target) {
  return target.half ? fmt::format("layer {} {}", target.layer, to_string(*target.half))
                     : fmt::format("layer {}", target.layer);
}

double kl_nats_of(const SwapProfile& profile, const SwapTarget& target) {
  double nats = 0.0;
  for (const Component half : halves_of(target)) {
    nats += profile.kl_nats[static_cast<std::size_t>(target.layer)][static_cast<std::size_t>(half)];
  }
  return nats;
}

std::vector<int> targets_of(const std::vector<RankedTarget>& ranked) {
  std::vector<int> targets;
  for (const RankedTarget& target : ranked) {
    targets.push_back(target.target);
  }
  return targets;
}

// Returns the order that is saved and those that MorphServe's tables 3, 6, 7 and 8 compare it with.
std::vector<NamedOrder> orders_to_compare(Profiler& profiler,
                                          const std::vector<RankedTarget>& ranked) {
  constexpr double kThird = 1.0 / 3.0;
  const auto order = [&](std::string name, const ImportanceWeights& weights, Metric metric) {
    auto targets = targets_of(profiler.rank(weights, metric, "ranking again"));
    return NamedOrder{std::move(name), std::move(targets)};
  };
  return {{"LIS, as kept", targets_of(ranked)},
          order("LIS, cosine, 1/4 1/4 1/2", {}, Metric::kCosine),
          order("LIS, cosine, 1/3 1/3 1/3", {kThird, kThird, kThird}, Metric::kCosine),
          order("LIS, L2, 1/4 1/4 1/2", {}, Metric::kL2),
          order("MDS alone, cosine", {0, 0, 1}, Metric::kCosine)};
}

LayerTables measure_tables(Profiler& profiler, const LayerProfileOptions& options,
                           const std::vector<RankedTarget>& ranked, const Sequences& calibration,
                           const Sequences& other) {
  LayerTables tables;
  const auto orders = orders_to_compare(profiler, ranked);
  const PerplexityOf perplexity = profiler.perplexity_of(calibration);
  tables.orders.push_back(measure_orders(options.calibrate, orders, perplexity));
  tables.independence = measure_independence(static_cast<int>(ranked.size()), perplexity);
  if (!other.empty()) {
    tables.orders.push_back(measure_orders(options.text, orders, profiler.perplexity_of(other)));
  }
  return tables;
}

Result<Sequences> windows_of(const std::string& path, const Tokenizer& tokenizer,
                             const WindowOptions& options) {
  auto windows = read_windows(path, tokenizer, options);
  if (!windows.ok()) {
    return windows.error();
  }
  std::erase_if(*windows, [](const auto& window) { return window.size() < 2; });
  if (windows->empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{} holds no document of two tokens", path);
  }
  return windows;
}

Status validate(const LayerProfileOptions& options, const ModelSpec& spec, Precision precision) {
  if (!precision.quantised()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--precision {} is full precision: use w8, w4, w3, w8a8, w8a7 or w4a8",
                      options.precision);
  }
  if (options.windows.length > spec.max_context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--sequence-length {}: this model reads at most {} tokens",
                      options.windows.length, spec.max_context);
  }
  double sum = 0.0;
  for (const double weight : options.weights) {
    sum += weight;
  }
  if (sum <= 0.0) {
    return make_error(ErrorCode::kInvalidArgument, "--weights that are all 0 rank nothing");
  }
  return {};
}

SwapProfile profile_of(const LayerProfileOptions& options, Precision precision,
                       const std::vector<RankedTarget>& ranked,
                       const std::vector<TargetSensitivity>& alone, const ModelSpec& spec) {
  SwapProfile profile{.precision = precision,
                      .halves = options.halves,
                      .metric = options.metric,
                      .weights = {options.weights[0], options.weights[1], options.weights[2]}};
  const std::vector<SwapTarget> targets = swap_targets(spec.layers, options.halves);
  for (const RankedTarget& one : ranked) {
    const auto at = static_cast<std::size_t>(one.target);
    profile.order.push_back(targets[at]);
    profile.importance.push_back(one.score);
    profile.transformation.push_back(alone[at].transformation);
    profile.replacement.push_back(alone[at].replacement);
  }
  return profile;
}

std::int64_t tokens_of(const Sequences& sequences) {
  std::int64_t tokens = 0;
  for (const auto& sequence : sequences) {
    tokens += std::ssize(sequence);
  }
  return tokens;
}

struct ProfileTexts {
  Sequences calibration;
  Sequences other;  // empty if not given
};

Result<ProfileTexts> read_texts(const LayerProfileOptions& options, const Tokenizer& tokenizer) {
  auto calibration = windows_of(options.calibrate, tokenizer, options.windows);
  if (!calibration.ok()) {
    return calibration.error();
  }
  ProfileTexts texts{.calibration = *std::move(calibration)};
  if (!options.text.empty()) {
    auto other = windows_of(options.text, tokenizer, options.windows);
    if (!other.ok()) {
      return other.error();
    }
    texts.other = *std::move(other);
  }
  return texts;
}

}  // namespace

std::string to_text(const LayerReport& report) {
  const SwapProfile& profile = report.profile;
  std::string text =
      fmt::format("{:<6}{:<20}{:>10}{:>10}{:>10}{:>10}\n", "",
                  "to " + std::string(to_string(profile.precision)), "LIS", "LTS", "LRS", "KL");
  double all_nats = 0.0;
  for (std::size_t at = 0; at < profile.order.size(); ++at) {
    text +=
        fmt::format("{:<6}{:<20}{:>10.6f}{:>10.6f}{:>10.6f}{:>10.6f}\n", at + 1,
                    name_of(profile.order[at]), profile.importance[at], profile.transformation[at],
                    profile.replacement[at], kl_nats_of(profile, profile.order[at]));
    all_nats += kl_nats_of(profile, profile.order[at]);
  }
  text += fmt::format("All of them lose {:.6f} nats of KL a token\n", all_nats);
  if (report.tables) {
    for (const OrderTable& table : report.tables->orders) {
      text += to_text(table);
    }
    text += to_text(report.tables->independence, report.target_names);
  }
  return text + fmt::format("\n{} tokens, ranked in {:.1f} s; {}\n", profile.tokens, report.seconds,
                            report.kept);
}

json::object to_json(const LayerReport& report) {
  const SwapProfile& profile = report.profile;
  json::array order;
  for (std::size_t at = 0; at < profile.order.size(); ++at) {
    json::object target{{"layer", profile.order[at].layer}};
    if (profile.order[at].half) {
      target["half"] = to_string(*profile.order[at].half);
    }
    target["lis"] = profile.importance[at];
    target["lts"] = profile.transformation[at];
    target["lrs"] = profile.replacement[at];
    target["kl_nats"] = kl_nats_of(profile, profile.order[at]);
    order.push_back(std::move(target));
  }
  json::object object{{"precision", to_string(profile.precision)},
                      {"metric", profile.metric},
                      {"weights", json::array(profile.weights.begin(), profile.weights.end())},
                      {"tokens", profile.tokens},
                      {"seconds", report.seconds},
                      {"kept", report.kept},
                      {"order", std::move(order)}};
  if (report.tables) {
    json::array tables;
    for (const OrderTable& table : report.tables->orders) {
      tables.push_back(to_json(table));
    }
    object["tables"] = std::move(tables);
    object["independence"] = to_json(report.tables->independence, report.target_names);
  }
  return object;
}

Result<LayerReport> profile_layers(const LayerProfileOptions& options) {
  const auto precision = parse_precision(options.precision);
  if (!precision.ok()) {
    return precision.error();
  }
  auto files = open_model_files({.model = options.model});
  if (!files.ok()) {
    return files.error();
  }
  const std::shared_ptr<const Checkpoint> checkpoint = std::move(files->checkpoint);
  const ModelSpec& spec = checkpoint->spec();
  if (const Status valid = validate(options, spec, *precision); !valid.ok()) {
    return valid.error();
  }
  const auto texts = read_texts(options, *files->tokenizer);
  const auto sources = variant_sources(options.variants);
  if (!texts.ok() || !sources.ok()) {
    return !texts.ok() ? texts.error() : sources.error();
  }
  const auto store =
      VariantStore::open({checkpoint, options.model}, *sources, {.directory = options.cache});
  if (!store.ok()) {
    return store.error();
  }
  const auto cpus = choose_cpus(this_machine(), options.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  cpu::Team team(cpus->threads, cpus->where);
  const cpu::Seat seat = team.take_seat();
  const auto start = std::chrono::steady_clock::now();
  const auto probe = SwapProbe::create(
      team, *checkpoint,
      {.low = *precision, .halves = options.halves, .longest = options.windows.length},
      [&](const ComponentVariant& which, std::span<std::byte> memory) {
        return (*store)->read(which, memory);
      });
  if (!probe.ok()) {
    return probe.error();
  }
  Profiler profiler(**probe, texts->calibration);
  const Metric metric = options.metric == "l2" ? Metric::kL2 : Metric::kCosine;
  const auto ranked = profiler.rank({options.weights[0], options.weights[1], options.weights[2]},
                                    metric, "ranking");
  const std::vector<LayerLoss> losses = (*probe)->divergence(texts->calibration);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  LayerReport report{
      .profile = profile_of(options, *precision, ranked, profiler.alone(metric), spec),
      .seconds = took.count()};
  report.profile.tokens = tokens_of(texts->calibration);
  report.profile.kl_nats = losses;
  report.kept = keep_learnt(**store, [&](const std::filesystem::path& directory) {
    const SwapProfileKey key = {(*store)->model(), (*store)->source_at(*precision), *precision,
                                options.halves};
    return save_swap_profile(directory, key, report.profile);
  });
  for (const SwapTarget& target : swap_targets(spec.layers, options.halves)) {
    report.target_names.push_back(name_of(target));
  }
  if (options.table) {
    report.tables = measure_tables(profiler, options, ranked, texts->calibration, texts->other);
  }
  return report;
}

}  // namespace protean

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "apps/calibration_text.h"
#include "apps/cpu_share.h"
#include "apps/keep_learnt.h"
#include "apps/machine.h"
#include "apps/model_files.h"
#include "apps/options.h"
#include "apps/profile_steps.h"
#include "apps/profile_table.h"
#include "apps/terminal.h"
#include "apps/variant_sources.h"
#include "model/swap_probe.h"
#include "model/swap_profile.h"
#include "model/variant_store.h"
#include "quality/swap_order.h"

namespace protean {
namespace {

namespace json = boost::json;

using Sequences = std::vector<std::vector<TokenId>>;

struct ProfileCommand {
  ModelOptions model;
  std::string calibrate;
  std::string text;
  std::string precision = "w4";
  std::vector<double> weights = {0.25, 0.25, 0.5};
  std::string metric = "cosine";
  WindowOptions windows = {.samples = 8, .length = 256};
  std::string cache;
  std::vector<std::string> variants;
  bool halves = false;
  bool table = false;
  bool as_json = false;
  StepProfileOptions steps;
  bool times_steps = false;
  bool shows_steps = false;
};

enum class Metric { kCosine, kL2 };

double value_of(const Similarity& similarity, Metric metric) {
  return metric == Metric::kCosine ? similarity.cosine : similarity.l2;
}

// One model under measurement. What a set of lowered targets does is measured once, however many
// orders and tables ask for it.
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

  // The same text each time, so that sets are known again.
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

std::vector<int> targets_of(const std::vector<RankedTarget>& ranked) {
  std::vector<int> targets;
  for (const RankedTarget& target : ranked) {
    targets.push_back(target.target);
  }
  return targets;
}

// The paper's tables 3, 6, 7 and 8 in one: the order that is kept, and those it is compared with.
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

struct Tables {
  std::vector<OrderTable> orders;
  IndependenceTable independence;
};

Tables measure_tables(Profiler& profiler, const ProfileCommand& command,
                      const std::vector<RankedTarget>& ranked, const Sequences& calibration,
                      const Sequences& other) {
  Tables tables;
  const auto orders = orders_to_compare(profiler, ranked);
  const PerplexityOf perplexity = profiler.perplexity_of(calibration);
  tables.orders.push_back(measure_orders(command.calibrate, orders, perplexity));
  tables.independence = measure_independence(static_cast<int>(ranked.size()), perplexity);
  if (!other.empty()) {
    tables.orders.push_back(measure_orders(command.text, orders, profiler.perplexity_of(other)));
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
    return make_error(ErrorCode::kInvalidArgument, "{} holds no two tokens in a row", path);
  }
  return windows;
}

Status validate(const ProfileCommand& command, const ModelSpec& spec, Precision precision) {
  if (!precision.quantised()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--precision {} is full precision: use w8, w4, w3, w8a8, w8a7 or w4a8",
                      command.precision);
  }
  if (command.windows.length > spec.max_context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--sequence-length {} does not go: this model reads {} tokens",
                      command.windows.length, spec.max_context);
  }
  double sum = 0.0;
  for (const double weight : command.weights) {
    sum += weight;
  }
  if (sum <= 0.0) {
    return make_error(ErrorCode::kInvalidArgument, "--weights that are all 0 rank nothing");
  }
  return {};
}

SwapProfile profile_of(const ProfileCommand& command, Precision precision,
                       const std::vector<RankedTarget>& ranked,
                       const std::vector<TargetSensitivity>& alone, const ModelSpec& spec) {
  SwapProfile profile{.precision = precision,
                      .halves = command.halves,
                      .metric = command.metric,
                      .weights = {command.weights[0], command.weights[1], command.weights[2]}};
  const std::vector<SwapTarget> targets = swap_targets(spec.layers, command.halves);
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

struct Report {
  SwapProfile profile;
  std::string kept;  // where, or why not
  double seconds = 0.0;
  std::vector<std::string> target_names;  // in the order they run
  std::optional<Tables> tables;
};

void print_report(const Report& report) {
  const SwapProfile& profile = report.profile;
  std::string text =
      fmt::format("{:<6}{:<20}{:>10}{:>10}{:>10}\n", "",
                  "to " + std::string(to_string(profile.precision)), "LIS", "LTS", "LRS");
  for (std::size_t at = 0; at < profile.order.size(); ++at) {
    text +=
        fmt::format("{:<6}{:<20}{:>10.6f}{:>10.6f}{:>10.6f}\n", at + 1, name_of(profile.order[at]),
                    profile.importance[at], profile.transformation[at], profile.replacement[at]);
  }
  if (report.tables) {
    for (const OrderTable& table : report.tables->orders) {
      text += to_text(table);
    }
    text += to_text(report.tables->independence, report.target_names);
  }
  print_text(text + fmt::format("\n{} tokens, ranked in {:.1f} s; {}\n", profile.tokens,
                                report.seconds, report.kept));
}

json::object to_json(const Report& report) {
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

struct ProfileTexts {
  Sequences calibration;
  Sequences other;  // empty where none was given
};

Result<ProfileTexts> read_texts(const ProfileCommand& command, const Tokenizer& tokenizer) {
  auto calibration = windows_of(command.calibrate, tokenizer, command.windows);
  if (!calibration.ok()) {
    return calibration.error();
  }
  ProfileTexts texts{.calibration = *std::move(calibration)};
  if (!command.text.empty()) {
    auto other = windows_of(command.text, tokenizer, command.windows);
    if (!other.ok()) {
      return other.error();
    }
    texts.other = *std::move(other);
  }
  return texts;
}

Result<Report> profile(const ProfileCommand& command) {
  const auto precision = parse_precision(command.precision);
  if (!precision.ok()) {
    return precision.error();
  }
  auto files = open_model_files(command.model);
  if (!files.ok()) {
    return files.error();
  }
  const std::shared_ptr<const Checkpoint> checkpoint = std::move(files->checkpoint);
  const ModelSpec& spec = checkpoint->spec();
  if (const Status valid = validate(command, spec, *precision); !valid.ok()) {
    return valid.error();
  }
  const auto texts = read_texts(command, *files->tokenizer);
  const auto sources = variant_sources(command.variants);
  if (!texts.ok() || !sources.ok()) {
    return !texts.ok() ? texts.error() : sources.error();
  }
  const auto store =
      VariantStore::open({checkpoint, command.model.model}, *sources, {.directory = command.cache});
  if (!store.ok()) {
    return store.error();
  }
  const auto cpus = choose_cpus(this_machine(), command.model.compute);
  if (!cpus.ok()) {
    return cpus.error();
  }
  cpu::Team team(cpus->threads, cpus->where);
  const cpu::Seat seat = team.take_seat();
  const auto start = std::chrono::steady_clock::now();
  const auto probe = SwapProbe::create(
      team, *checkpoint,
      {.low = *precision, .halves = command.halves, .longest = command.windows.length},
      [&](const ComponentVariant& which, std::span<std::byte> memory) {
        return (*store)->read(which, memory);
      });
  if (!probe.ok()) {
    return probe.error();
  }
  Profiler profiler(**probe, texts->calibration);
  const Metric metric = command.metric == "l2" ? Metric::kL2 : Metric::kCosine;
  const auto ranked = profiler.rank({command.weights[0], command.weights[1], command.weights[2]},
                                    metric, "ranking");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  Report report{.profile = profile_of(command, *precision, ranked, profiler.alone(metric), spec),
                .seconds = took.count()};
  report.profile.tokens = tokens_of(texts->calibration);
  report.kept = keep_learnt(**store, [&](const std::filesystem::path& directory) {
    const SwapProfileKey key = {(*store)->model(), (*store)->source_at(*precision), *precision,
                                command.halves};
    return save_swap_profile(directory, key, report.profile);
  });
  for (const SwapTarget& target : swap_targets(spec.layers, command.halves)) {
    report.target_names.push_back(name_of(target));
  }
  if (command.table) {
    report.tables = measure_tables(profiler, command, ranked, texts->calibration, texts->other);
  }
  return report;
}

int show_steps(const ProfileCommand& command) {
  const auto kept = kept_steps(command.steps);
  if (!kept.ok()) {
    return exit_with(kept.error());
  }
  print_text(command.as_json ? json::serialize(json::object{{"steps", kept->json}}) + "\n"
                             : kept->text);
  return 0;
}

int run_profile(ProfileCommand& command) {
  command.steps.model = command.model.model;
  command.steps.variant_cache = command.cache;
  command.steps.compute = command.model.compute;
  if (command.shows_steps) {
    return show_steps(command);
  }
  if (command.calibrate.empty() && !command.times_steps) {
    return exit_with({ErrorCode::kInvalidArgument,
                      "there is nothing to learn: give --calibrate FILE to rank layers, --steps to "
                      "time steps, or both"});
  }
  json::object object;
  if (!command.calibrate.empty()) {
    const auto report = profile(command);
    if (!report.ok()) {
      return exit_with(report.error());
    }
    object = to_json(*report);
    if (!command.as_json) {
      print_report(*report);
    }
  }
  if (command.times_steps) {
    const auto steps = profile_steps(command.steps);
    if (!steps.ok()) {
      return exit_with(steps.error());
    }
    object["steps"] = steps->json;
    if (!command.as_json) {
      print_text(steps->text);
    }
  }
  if (command.as_json) {
    print_text(json::serialize(object) + "\n");
  }
  return 0;
}

void add_step_options(CLI::App& app, ProfileCommand& command) {
  app.add_flag("--steps", command.times_steps,
               "time steps of the model on this machine and fit the cost model to them");
  app.add_flag("--show-steps", command.shows_steps,
               "print the cost model that was kept, and measure nothing");
  app.add_option("--step-precisions", command.steps.precisions, "of the layers in timed steps")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--longest-step", command.steps.longest,
                 "tokens of the longest prompt and context of a timed step")
      ->check(CLI::Range(128, 65536))
      ->capture_default_str();
  app.add_option("--step-repeat", command.steps.repeat, "times that each step is timed at least")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--cpu-time", command.steps.cpu_time,
               "time steps by the processor time used, for machines that have other work");
}

}  // namespace

void add_profile(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "profile", "learn what a model's layers lose at fewer bits, and what its steps take");
  auto command = std::make_shared<ProfileCommand>();
  app->add_option("model", command->model.model, "Hugging Face directory or .gguf file")
      ->required();
  app->add_option("--calibrate", command->calibrate,
                  "text like what the model will read. A .jsonl file holds a document a line, in "
                  "\"text\"");
  app->add_option("--precision", command->precision,
                  "that layers go to: w8, w4, w3, w8a8, w8a7 or w4a8")
      ->capture_default_str();
  app->add_option("--weights", command->weights,
                  "of a layer's transformation of its input, its own change at fewer bits, and "
                  "the change of the model's output")
      ->delimiter(',')
      ->expected(3)
      ->check(number_range(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--metric", command->metric, "of change: cosine or l2")
      ->check(CLI::IsMember({"cosine", "l2"}))
      ->capture_default_str();
  app->add_flag("--halves", command->halves, "rank attention and MLP of each layer apart");
  app->add_flag("--table", command->table,
                "also print perplexities by how many are lowered, for this order and others");
  app->add_option("--text", command->text, "other text for the table");
  app->add_option("--samples", command->windows.samples, "windows of each text to measure with")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app->add_option("--sequence-length", command->windows.length, "tokens of a window")
      ->check(CLI::Range(2, 32768))
      ->capture_default_str();
  add_variant_option(*app, command->variants);
  app->add_option("--variant-cache", command->cache,
                  "folder for packed weights and the order; default: ~/.cache/protean");
  add_compute_options(*app, command->model.compute);
  add_step_options(*app, *command);
  app->add_flag("--json", command->as_json, "print one JSON object");
  app->footer(
      "Example: protean profile MODEL --calibrate book.txt --table --text other.txt --steps\n"
      "Serving takes layers to fewer bits in this order, and front to back without one.");
  app->callback([command, &exit_code] { exit_code = run_profile(*command); });
}

}  // namespace protean

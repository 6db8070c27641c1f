#include "apps/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <optional>

#include "base/units.h"
#include "cost/memory.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr double kUsPerMs = 1000;
constexpr double kBytesPerGiB = static_cast<double>(kGiB);

double gib(std::int64_t bytes) {
  return static_cast<double>(bytes) / kBytesPerGiB;
}

bool fits(const PlanReport& report, std::size_t candidate) {
  const EstimatedConfiguration& of = report.deployment.candidates[candidate];
  return fits_devices(of.configuration, report.states, of.memory, report.wish.spec.layers);
}

// Returns the most bytes on one device if stages are as even as possible.
std::int64_t even_bytes(int layers, const EstimatedConfiguration& candidate) {
  const Division even =
      even_division(layers, candidate.configuration.tensor, candidate.configuration.stages);
  return candidate.memory.fullest_bytes(even.stage_layers);
}

// Returns the most bytes on one device as the chosen configuration is placed.
std::int64_t placed_bytes(const Deployment& found) {
  return found.candidates[found.chosen].memory.fullest_bytes(found.placement.stage_layers);
}

std::string row_text(const PlanReport& report, std::size_t place, std::size_t candidate) {
  const EstimatedConfiguration& of = report.deployment.candidates[candidate];
  const Score& score = report.deployment.scores[candidate];
  const bool chosen = candidate == report.deployment.chosen;
  const std::optional<double> ratio = report.perplexity_ratios[candidate];
  return fmt::format(
      "{:>4}  {:<42} {:>9.1f} {:>8.2f} {:>10.1f} {:>9.2f} {:>9.2f} {:>11.3g} {:>10} {}\n", place,
      to_string(of.configuration), of.latency.ttft_us / kUsPerMs, of.latency.tpot_us / kUsPerMs,
      score.latency_ms, gib(of.total_bytes),
      gib(chosen ? placed_bytes(report.deployment) : even_bytes(report.wish.spec.layers, of)),
      score.cost, ratio ? fmt::format("{:.4f}", *ratio) : "",
      chosen                    ? "chosen"
      : fits(report, candidate) ? ""
                                : "does not fit");
}

// One stage of the chosen placement.
struct PlacedStage {
  std::vector<int> devices;
  int first_layer = 0;
  int layers = 0;
  std::int64_t device_bytes = 0;
};

std::vector<PlacedStage> placed_stages(const PlanReport& report) {
  const Deployment& found = report.deployment;
  const EstimatedConfiguration& chosen = found.candidates[found.chosen];
  const auto tensor = static_cast<std::size_t>(chosen.configuration.tensor);
  const std::vector<int>& layers = found.placement.stage_layers;
  std::vector<PlacedStage> stages;
  int first = 0;
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    const auto begin =
        found.placement.devices.begin() + static_cast<std::ptrdiff_t>(stage * tensor);
    const bool end = stage == 0 || stage + 1 == layers.size();
    stages.push_back({.devices = {begin, begin + static_cast<std::ptrdiff_t>(tensor)},
                      .first_layer = first,
                      .layers = layers[stage],
                      .device_bytes = chosen.memory.device_bytes(layers[stage], end)});
    first += layers[stage];
  }
  return stages;
}

std::string placement_text(const PlanReport& report) {
  std::string text;
  for (const PlacedStage& stage : placed_stages(report)) {
    text += fmt::format("  layers {} to {} on device{} {}: {:.2f} GiB each\n", stage.first_layer,
                        stage.first_layer + stage.layers - 1, stage.devices.size() == 1 ? "" : "s",
                        fmt::join(stage.devices, ", "), gib(stage.device_bytes));
  }
  return text;
}

// Why the chosen configuration was chosen.
std::string reason_text(const PlanReport& report) {
  const Deployment& found = report.deployment;
  const auto place =
      std::find(found.ranked.begin(), found.ranked.end(), found.chosen) - found.ranked.begin();
  const std::size_t missed = found.candidates.size() - found.ranked.size();
  std::string text =
      fmt::format("chosen: {}, the first of {} configurations",
                  to_string(found.candidates[found.chosen].configuration), found.ranked.size());
  if (missed > 0) {
    text += fmt::format(" that keep {} ({} do not)", to_string(report.wish.intent), missed);
  }
  if (place > 0) {
    text += fmt::format("; the {} before it {} not fit the free memory", place,
                        place == 1 ? "does" : "do");
  }
  return text + "\n";
}

json::value rank_of(const Deployment& found, std::size_t candidate) {
  const auto at = std::find(found.ranked.begin(), found.ranked.end(), candidate);
  return at == found.ranked.end() ? json::value() : json::value(at - found.ranked.begin() + 1);
}

json::object row_json(const PlanReport& report, std::size_t candidate) {
  const Score& score = report.deployment.scores[candidate];
  json::object row{{"rank", rank_of(report.deployment, candidate)}};
  json::object estimate =
      estimate_json(report.deployment.candidates[candidate], report.wish.spec.layers,
                    report.perplexity_ratios[candidate], report.rests_on[candidate]);
  for (auto& [name, value] : estimate) {
    row[name] = std::move(value);
  }
  row["latency_ms"] = score.latency_ms;
  row["cost"] = score.cost;
  row["device_seconds"] = score.device_seconds;
  row["fits"] = fits(report, candidate);
  return row;
}

json::object choice_json(const PlanReport& report) {
  json::array stages;
  for (const PlacedStage& stage : placed_stages(report)) {
    stages.push_back(
        json::object{{"devices", json::array(stage.devices.begin(), stage.devices.end())},
                     {"first_layer", stage.first_layer},
                     {"layers", stage.layers},
                     {"device_memory_bytes", stage.device_bytes}});
  }
  json::object choice = row_json(report, report.deployment.chosen);
  choice["device_memory_bytes"] = placed_bytes(report.deployment);
  choice["stages"] = std::move(stages);
  return choice;
}

}  // namespace

double fingerprint_share(const ModelSpec& spec, int layers) {
  const auto layer = static_cast<double>(layer_bytes(spec, Precision::kBf16));
  const auto embeddings =
      static_cast<double>(component_bytes(spec, Component::kEmbeddings, Precision::kBf16));
  return (layers * layer + embeddings) / (spec.layers * layer + embeddings);
}

boost::json::object estimate_json(const EstimatedConfiguration& of, int layers,
                                  std::optional<double> perplexity_ratio,
                                  const std::string& rests_on) {
  const Configuration& is = of.configuration;
  return {{"name", to_string(is)},
          {"tensor", is.tensor},
          {"pipeline", is.stages},
          {"devices", is.devices()},
          {"weights", std::string(to_string(is.weights))},
          {"method", std::string(to_string(is.method))},
          {"kv", std::string(to_string(is.kv))},
          {"pruning", to_string(is.pruning)},
          {"ttft_ms", of.latency.ttft_us / kUsPerMs},
          {"tpot_ms", of.latency.tpot_us / kUsPerMs},
          {"memory_bytes", of.total_bytes},
          {"device_memory_bytes", even_bytes(layers, of)},
          {"perplexity_ratio", perplexity_ratio ? json::value(*perplexity_ratio) : json::value()},
          {"rests_on", rests_on}};
}

std::string plan_text(const PlanReport& report, int rows) {
  const DeploymentWish& wish = report.wish;
  const Deployment& found = report.deployment;
  std::string text = fmt::format(
      "{} on {} ({} device{}), intent {}, cost by {}\n"
      "answers to prompts of {} tokens with {} tokens, {} at once\n\n",
      report.model, report.devices.name, report.devices.devices.size(),
      report.devices.devices.size() == 1 ? "" : "s", to_string(wish.intent),
      to_string(wish.pricing.formula), wish.load.prompt_tokens, wish.load.output_tokens,
      wish.load.batch);
  text += fmt::format("{:>4}  {:<42} {:>9} {:>8} {:>10} {:>9} {:>9} {:>11} {:>10}\n", "rank",
                      "configuration", "TTFT ms", "TPOT ms", "answer ms", "GiB", "GiB/dev", "cost",
                      "PPL ratio");
  const auto shown = std::min<std::size_t>(found.ranked.size(), static_cast<std::size_t>(rows));
  for (std::size_t place = 0; place < shown; ++place) {
    text += row_text(report, place + 1, found.ranked[place]);
  }
  const auto chosen = static_cast<std::size_t>(
      std::find(found.ranked.begin(), found.ranked.end(), found.chosen) - found.ranked.begin());
  if (chosen >= shown) {
    text += " ...\n" + row_text(report, chosen + 1, found.chosen);
  }
  text += "\n" + reason_text(report) + placement_text(report);
  text += fmt::format("estimates rest on: {}\n", report.rests_on[found.chosen]);
  text += fmt::format("a fingerprint of one layer has {:.2f} % of the weights, of two {:.2f} %\n",
                      100 * fingerprint_share(wish.spec, 1), 100 * fingerprint_share(wish.spec, 2));
  return text;
}

boost::json::object plan_json(const PlanReport& report) {
  const DeploymentWish& wish = report.wish;
  json::array rows;
  for (std::size_t candidate = 0; candidate < report.deployment.candidates.size(); ++candidate) {
    rows.push_back(row_json(report, candidate));
  }
  return {{"model", report.model},
          {"devices", report.devices.name},
          {"space", report.space},
          {"intent", to_string(wish.intent)},
          {"cost_formula", std::string(to_string(wish.pricing.formula))},
          {"batch", wish.load.batch},
          {"prompt_tokens", wish.load.prompt_tokens},
          {"output_tokens", wish.load.output_tokens},
          {"placement", std::string(to_string(wish.placement.policy))},
          {"fingerprint_share", json::object{{"one_layer", fingerprint_share(wish.spec, 1)},
                                             {"two_layers", fingerprint_share(wish.spec, 2)}}},
          {"choice", choice_json(report)},
          {"configurations", std::move(rows)}};
}

}  // namespace protean

#include "measure/fingerprint_check.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <utility>

#include "base/units.h"

namespace protean {
namespace {

namespace json = boost::json;

const TimedStep* find_step(std::span<const TimedStep> steps, double tokens, double logit_rows,
                           double most_context) {
  const auto found = std::find_if(steps.begin(), steps.end(), [&](const TimedStep& step) {
    return step.work.tokens == tokens && step.work.sequences == 1 &&
           step.work.logit_rows == logit_rows && step.work.context_tokens <= most_context;
  });
  return found == steps.end() ? nullptr : &*found;
}

// Returns the latency of one request by the whole model's own steps.
std::optional<Latency> measured_latency(std::span<const TimedStep> steps, int prompt_tokens) {
  const std::int64_t prompt_context = std::int64_t{prompt_tokens} * (prompt_tokens + 1) / 2;
  const TimedStep* const first = find_step(steps, prompt_tokens, 1, prompt_context);
  const TimedStep* const next = find_step(steps, 1, 1, prompt_tokens);
  if (first == nullptr || next == nullptr) {
    return std::nullopt;
  }
  return Latency{.ttft_us = first->us, .tpot_us = next->us};
}

double percent(double estimate, double measured) {
  return 100 * (estimate / measured - 1);
}

}  // namespace

FingerprintCheck check_fingerprint(const Fingerprint& found, std::span<const TimedStep> steps) {
  FingerprintCheck check{.found = found};
  for (const ModelEstimate& estimate : found.models) {
    std::vector<TimedStep> at;
    std::copy_if(steps.begin(), steps.end(), std::back_inserter(at), [&](const TimedStep& step) {
      return step.precision.layers[index_of(estimate.precision)] > 0.999;
    });
    check.models.push_back({.estimate = estimate,
                            .measured = measured_latency(at, found.prompt_tokens),
                            .error = prediction_error(found.cost, at)});
  }
  return check;
}

std::string to_text(const FingerprintCheck& check) {
  std::string text = fmt::format(
      "fingerprint of {} layers made in {:.1f} s, {:.1f} s of it for loading\n"
      "{:<10}{:>12}{:>14}{:>12}{:>18}{:>16}\n",
      check.found.layers, check.found.seconds, check.found.load_seconds, "layers", "TTFT ms",
      "(measured %)", "TPOT ms", "(measured %)", "weights");
  for (const FingerprintCheck::Model& model : check.models) {
    const Latency& latency = model.estimate.latency;
    const auto off = [&](double estimate, double Latency::*which) {
      return model.measured ? fmt::format("{:+.1f}", percent(estimate, (*model.measured).*which))
                            : std::string();
    };
    text += fmt::format(
        "{:<10}{:>12.2f}{:>14}{:>12.3f}{:>18}{:>16}\n", to_string(model.estimate.precision),
        latency.ttft_us / 1000, off(latency.ttft_us, &Latency::ttft_us), latency.tpot_us / 1000,
        off(latency.tpot_us, &Latency::tpot_us), format_bytes(model.estimate.weight_bytes));
  }
  text += fmt::format("TTFT is of a prompt of {} tokens\n", check.found.prompt_tokens);
  for (const FingerprintCheck::Model& model : check.models) {
    if (model.error.steps > 0) {
      text +=
          fmt::format("{:<10}error on {} steps of the whole model: mean {:.1f} %, worst {:.1f} %\n",
                      to_string(model.estimate.precision), model.error.steps,
                      model.error.mean * 100, model.error.worst * 100);
    }
  }
  return text;
}

json::object to_json(const FingerprintCheck& check) {
  json::array models;
  for (const FingerprintCheck::Model& model : check.models) {
    json::object object{{"precision", to_string(model.estimate.precision)},
                        {"ttft_ms", model.estimate.latency.ttft_us / 1000},
                        {"tpot_ms", model.estimate.latency.tpot_us / 1000},
                        {"weight_bytes", model.estimate.weight_bytes},
                        {"kv_token_bytes", model.estimate.kv_token_bytes}};
    if (model.measured) {
      object["measured_ttft_ms"] = model.measured->ttft_us / 1000;
      object["measured_tpot_ms"] = model.measured->tpot_us / 1000;
    }
    if (model.error.steps > 0) {
      object["steps"] = model.error.steps;
      object["mean_error"] = model.error.mean;
      object["worst_error"] = model.error.worst;
    }
    models.push_back(std::move(object));
  }
  json::array steps;
  for (const TimedStep& step : check.found.steps) {
    const auto count = [](double of) { return static_cast<std::int64_t>(of); };
    json::object object{{"tokens", count(step.work.tokens)},
                        {"sequences", count(step.work.sequences)},
                        {"logit_rows", count(step.work.logit_rows)},
                        {"us", step.us}};
    for (const Precision precision : kPrecisions) {
      if (const double share = step.precision.layers[index_of(precision)]; share > 0) {
        object["layers"] = to_string(precision);
        object["share"] = share;
      }
    }
    steps.push_back(std::move(object));
  }
  return {{"layers", check.found.layers},
          {"seconds", check.found.seconds},
          {"load_seconds", check.found.load_seconds},
          {"prompt_tokens", check.found.prompt_tokens},
          {"models", std::move(models)},
          {"steps", std::move(steps)}};
}

}  // namespace protean

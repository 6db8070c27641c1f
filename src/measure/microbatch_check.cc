#include "measure/microbatch_check.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <vector>

#include "cost/least_squares.h"

namespace protean {
namespace {

constexpr std::int64_t kLeastTokens = 8;  // fewer are a batch of decodes

// The line over tokens of one precision of layers.
struct TokenLine {
  double step_us = 0;
  double token_us = 0;

  double us(const StepWork& work) const {
    return step_us + token_us * static_cast<double>(work.tokens);
  }
};

bool is_of_a_prompt(const TimedStep& step) {
  return step.work.sequences == 1 && step.work.tokens >= kLeastTokens;
}

bool has_prefix(const StepWork& work) {
  const auto tokens = static_cast<double>(work.tokens);
  return work.context_tokens > tokens * (tokens + 1) / 2 + 0.5;
}

// Fits relative errors, as the cost model does. Returns nothing without steps at these precisions.
std::optional<TokenLine> fit_line(std::span<const TimedStep> fitted, const LayerShares& layers) {
  LinearSystem system{.columns = {{}, {}}, .target = {}};
  for (const TimedStep& step : fitted) {
    if (is_of_a_prompt(step) && step.precision.layers == layers) {
      system.columns[0].push_back(1 / step.us);
      system.columns[1].push_back(static_cast<double>(step.work.tokens) / step.us);
      system.target.push_back(1);
    }
  }
  if (system.target.size() < 2 || dependent_column(system)) {
    return std::nullopt;
  }
  const std::vector<double> weights = nonnegative_least_squares(system);
  return TokenLine{weights[0], weights[1]};
}

std::string to_text(const MicrobatchCheck::Errors& errors) {
  return fmt::format("{:.1f} % in {} steps (by tokens alone {:.1f} %)", 100 * errors.mean,
                     errors.steps, 100 * errors.mean_by_tokens);
}

boost::json::object to_json(const MicrobatchCheck::Errors& errors) {
  return {{"steps", errors.steps},
          {"mean_error", errors.mean},
          {"mean_error_by_tokens", errors.mean_by_tokens}};
}

}  // namespace

MicrobatchCheck check_microbatches(const StepCost& cost, std::span<const TimedStep> fitted,
                                   std::span<const TimedStep> held_out) {
  MicrobatchCheck check;
  for (const TimedStep& step : held_out) {
    const auto line = is_of_a_prompt(step) ? fit_line(fitted, step.precision.layers) : std::nullopt;
    if (!line) {
      continue;
    }
    MicrobatchCheck::Errors& errors =
        has_prefix(step.work) ? check.with_prefix : check.without_prefix;
    ++errors.steps;
    errors.mean += std::abs(predict_us(cost, step.work, step.precision) / step.us - 1);
    errors.mean_by_tokens += std::abs(line->us(step.work) / step.us - 1);
  }
  for (MicrobatchCheck::Errors* errors : {&check.without_prefix, &check.with_prefix}) {
    if (errors->steps > 0) {
      errors->mean /= errors->steps;
      errors->mean_by_tokens /= errors->steps;
    }
  }
  return check;
}

std::string to_text(const MicrobatchCheck& check) {
  return fmt::format("chunks of a prompt, mean error: {}; after earlier chunks {}\n",
                     to_text(check.without_prefix), to_text(check.with_prefix));
}

boost::json::object to_json(const MicrobatchCheck& check) {
  return {{"without_prefix", to_json(check.without_prefix)},
          {"with_prefix", to_json(check.with_prefix)}};
}

}  // namespace protean

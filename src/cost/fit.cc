#include "cost/fit.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cost/least_squares.h"

namespace protean {
namespace {

// The places where the layers' cost may bend and the rows that a kernel's tile may have. The fit
// tries all of them.
constexpr std::array kBends = {2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0};
constexpr std::array kTiles = {6.0, 12.0, 16.0, 32.0};

// One coefficient of the model: its place in StepCost, and the factor that a step multiplies it by.
struct Term {
  std::string name;
  std::function<double&(StepCost&)> coefficient;
  std::function<double(const TimedStep&)> amount;
};

std::vector<Term> shared_terms() {
  return {{"context tokens", [](StepCost& cost) -> double& { return cost.context_token_us; },
           [](const TimedStep& step) { return step.work.context_tokens; }},
          {"sequences", [](StepCost& cost) -> double& { return cost.sequence_us; },
           [](const TimedStep& step) { return static_cast<double>(step.work.sequences); }},
          {"tokens of KV", [](StepCost& cost) -> double& { return cost.kv_token_us; },
           [](const TimedStep& step) { return step.work.kv_tokens; }},
          {"the LM head", [](StepCost& cost) -> double& { return cost.logits_us; },
           [](const TimedStep& step) { return step.work.logit_rows > 0 ? 1.0 : 0.0; }},
          {"rows of logits", [](StepCost& cost) -> double& { return cost.logit_row_us; },
           [](const TimedStep& step) { return static_cast<double>(step.work.logit_rows); }}};
}

void add_layer_terms(Precision precision, double bend, double tile, std::vector<Term>& terms) {
  const auto at = index_of(precision);
  const auto share = [at](const TimedStep& step) { return step.layers[at]; };
  const auto name = [&](const char* what) {
    return fmt::format("{} at {}", what, to_string(precision));
  };
  terms.push_back(
      {name("layers"), [at](StepCost& cost) -> double& { return cost.layers[at].step_us; }, share});
  terms.push_back({name("the first tokens"),
                   [at](StepCost& cost) -> double& { return cost.layers[at].token_us; },
                   [share, bend](const TimedStep& step) {
                     return share(step) *
                            std::min<double>(bend, static_cast<double>(step.work.tokens));
                   }});
  terms.push_back({name("more tokens"),
                   [at](StepCost& cost) -> double& { return cost.layers[at].more_token_us; },
                   [share, bend](const TimedStep& step) {
                     return share(step) *
                            std::max(0.0, static_cast<double>(step.work.tokens) - bend);
                   }});
  terms.push_back({name("tiles"),
                   [at](StepCost& cost) -> double& { return cost.layers[at].tile_us; },
                   [share, tile](const TimedStep& step) {
                     return share(step) * std::ceil(static_cast<double>(step.work.tokens) / tile);
                   }});
}

std::vector<Term> terms_of(std::span<const TimedStep> steps, double bend, double tile) {
  std::vector<Term> terms;
  for (const Precision precision : kPrecisions) {
    const auto at = index_of(precision);
    if (std::any_of(steps.begin(), steps.end(),
                    [at](const TimedStep& step) { return step.layers[at] > 0; })) {
      add_layer_terms(precision, bend, tile, terms);
    }
  }
  for (Term& term : shared_terms()) {
    terms.push_back(std::move(term));
  }
  return terms;
}

// Divides every row by its time, so that errors are relative and the target is 1.
LinearSystem system_of(std::span<const TimedStep> steps, const std::vector<Term>& terms) {
  LinearSystem system{.target = std::vector<double>(steps.size(), 1.0)};
  for (const Term& term : terms) {
    std::vector<double>& column = system.columns.emplace_back();
    for (const TimedStep& step : steps) {
      column.push_back(term.amount(step) / step.us);
    }
  }
  return system;
}

double squared_error(const StepCost& cost, std::span<const TimedStep> steps) {
  double sum = 0;
  for (const TimedStep& step : steps) {
    const double error = predict_us(cost, step.work, step.layers) / step.us - 1;
    sum += error * error;
  }
  return sum;
}

Status validate(std::span<const TimedStep> steps) {
  for (const TimedStep& step : steps) {
    double share = 0;
    for (const double one : step.layers) {
      share += one;
    }
    if (!std::isfinite(step.us) || step.us <= 0 || std::abs(share - 1) > 1e-6) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a step of {} tokens took {} us through {} of the layers: times must be "
                        "above 0 and steps go through all layers",
                        step.work.tokens, step.us, share);
    }
  }
  return {};
}

Result<StepCost> fit_at(std::span<const TimedStep> steps, double bend, double tile) {
  const std::vector<Term> terms = terms_of(steps, bend, tile);
  if (steps.size() <= terms.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} timed steps cannot settle the {} terms of the cost model: time more",
                      steps.size(), terms.size());
  }
  const LinearSystem system = system_of(steps, terms);
  if (const auto unknown = dependent_column(system)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the timed steps cannot tell what {} cost from the rest: time steps that "
                      "differ in them alone",
                      terms[*unknown].name);
  }
  const std::vector<double> weights = nonnegative_least_squares(system);
  StepCost cost{.bend_tokens = bend, .tile_tokens = tile};
  for (std::size_t i = 0; i < terms.size(); ++i) {
    terms[i].coefficient(cost) = weights[i];
  }
  return cost;
}

}  // namespace

Result<StepCost> fit_step_cost(std::span<const TimedStep> steps) {
  if (const Status valid = validate(steps); !valid.ok()) {
    return valid.error();
  }
  StepCost best;
  double least = std::numeric_limits<double>::infinity();
  std::optional<Error> refused;
  for (const double tile : kTiles) {
    for (const double bend : kBends) {
      const auto cost = fit_at(steps, bend, tile);
      if (!cost.ok()) {
        refused = refused ? refused : cost.error();
      } else if (const double error = squared_error(*cost, steps); error < least) {
        least = error;
        best = *cost;
      }
    }
  }
  if (std::isinf(least)) {
    return *refused;
  }
  return best;
}

bool covers(const StepCost& cost, const LayerShares& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] > 0 && !cost.layers[i].is_known()) {
      return false;
    }
  }
  return true;
}

PredictionError prediction_error(const StepCost& cost, std::span<const TimedStep> steps,
                                 int least_tokens) {
  PredictionError error;
  for (const TimedStep& step : steps) {
    if (step.work.tokens < least_tokens) {
      continue;
    }
    const double one = std::abs(predict_us(cost, step.work, step.layers) / step.us - 1);
    error.mean += one;
    error.worst = std::max(error.worst, one);
    ++error.steps;
  }
  error.mean /= std::max(1, error.steps);
  return error;
}

}  // namespace protean

#include "cost/fit.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "cost/least_squares.h"

namespace protean {
namespace {

// The places where the layers' cost may bend, the rows that a kernel's tile may have and those of a
// pass over the weights, and the tokens of KV that caches may hold. The fit tries all of them.
constexpr std::array kBends = {2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0};
constexpr std::array kTiles = {6.0, 12.0, 16.0, 32.0};
constexpr std::array kPasses = {0.0, 240.0, 256.0};
constexpr std::array kNearKv = {0.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0};

constexpr double kSameDepth = 1e-6;  // parts of a model's layers that differ by less are the same

// One coefficient of the model: its place in StepCost, and the factor that a step multiplies it by.
struct Term {
  std::string name;
  std::function<double&(StepCost&)> coefficient;
  std::function<double(const TimedStep&)> amount;
  double least_us = 0;
};

constexpr double kKnownUs = 1e-6;  // the least time of a term whose precision was timed

// The bend and the tile of a precision.
struct Corners {
  double bend_tokens = 0;
  double tile_tokens = 0;
};
struct AllCorners {
  std::array<Corners, kPrecisions.size()> layers{};  // by index_of()
  double pass_tokens = 0;                            // of all precisions
  double near_kv_tokens = 0;
};

bool has_layers(std::span<const TimedStep> steps, std::size_t at) {
  return std::any_of(steps.begin(), steps.end(),
                     [at](const TimedStep& step) { return step.precision.layers[at] > 0; });
}

void add_layer_terms(Precision precision, const AllCorners& corners, std::vector<Term>& terms) {
  const auto at = index_of(precision);
  const double bend = corners.layers[at].bend_tokens;
  const double tile = corners.layers[at].tile_tokens;
  // The passes that a step makes over the weights.
  const LayersCost read{.step_us = 1, .tile_tokens = 1, .pass_tokens = corners.pass_tokens};
  const auto share = [at](const TimedStep& step) { return step.precision.layers[at]; };
  const auto name = [&](const char* what) {
    return fmt::format("{} at {}", what, to_string(precision));
  };
  terms.push_back({name("layers"),
                   [at](StepCost& cost) -> double& { return cost.layers[at].step_us; },
                   [share, read](const TimedStep& step) {
                     return share(step) * layers_us(read, step.work.tokens);
                   },
                   kKnownUs});
  terms.push_back({name("the first tokens"),
                   [at](StepCost& cost) -> double& { return cost.layers[at].token_us; },
                   [share, bend](const TimedStep& step) {
                     return share(step) * std::min(bend, step.work.tokens);
                   }});
  terms.push_back({name("more tokens"),
                   [at](StepCost& cost) -> double& { return cost.layers[at].more_token_us; },
                   [share, bend](const TimedStep& step) {
                     return share(step) * std::max(0.0, step.work.tokens - bend);
                   }});
  terms.push_back({name("tiles"),
                   [at](StepCost& cost) -> double& { return cost.layers[at].tile_us; },
                   [share, tile](const TimedStep& step) {
                     return share(step) * std::ceil(step.work.tokens / tile);
                   }});
}

void add_logits_terms(Precision precision, std::span<const TimedStep> steps,
                      std::vector<Term>& terms) {
  const auto at = index_of(precision);
  const auto projects = [precision](const TimedStep& step) {
    return step.precision.embeddings == precision && step.work.logit_rows > 0;
  };
  if (std::none_of(steps.begin(), steps.end(), projects)) {
    return;
  }
  terms.push_back({fmt::format("the LM head at {}", to_string(precision)),
                   [at](StepCost& cost) -> double& { return cost.logits[at].step_us; },
                   [projects](const TimedStep& step) { return projects(step) ? 1.0 : 0.0; },
                   kKnownUs});
  terms.push_back(
      {fmt::format("rows of logits at {}", to_string(precision)),
       [at](StepCost& cost) -> double& { return cost.logits[at].row_us; },
       [projects](const TimedStep& step) { return projects(step) ? step.work.logit_rows : 0.0; }});
}

// Returns the part of the model's layers that the step runs through.
double depth_of(const TimedStep& step) {
  return std::accumulate(step.precision.layers.begin(), step.precision.layers.end(), 0.0);
}

bool differ_in_depth(std::span<const TimedStep> steps) {
  return std::any_of(steps.begin(), steps.end(), [&](const TimedStep& step) {
    return std::abs(depth_of(step) - depth_of(steps.front())) > kSameDepth;
  });
}

std::vector<Term> terms_of(std::span<const TimedStep> steps, const AllCorners& corners) {
  std::vector<Term> terms;
  if (differ_in_depth(steps)) {
    terms.push_back({"a step", [](StepCost& cost) -> double& { return cost.fixed_us; },
                     [](const TimedStep&) { return 1.0; }});
    terms.push_back({"tokens", [](StepCost& cost) -> double& { return cost.token_us; },
                     [](const TimedStep& step) { return step.work.tokens; }});
  }
  for (const Precision precision : kPrecisions) {
    const auto at = index_of(precision);
    if (has_layers(steps, at)) {
      add_layer_terms(precision, corners, terms);
    }
    add_logits_terms(precision, steps, terms);
  }
  terms.push_back({"context tokens",
                   [](StepCost& cost) -> double& { return cost.context_token_us; },
                   [](const TimedStep& step) { return step.work.context_tokens; }});
  terms.push_back({"sequences", [](StepCost& cost) -> double& { return cost.sequence_us; },
                   [](const TimedStep& step) { return static_cast<double>(step.work.sequences); }});
  terms.push_back({"tokens of KV", [](StepCost& cost) -> double& { return cost.kv_token_us; },
                   [](const TimedStep& step) { return step.work.kv_tokens; }});
  if (corners.near_kv_tokens > 0) {
    terms.push_back({"tokens of KV beyond caches",
                     [](StepCost& cost) -> double& { return cost.far_kv_token_us; },
                     [near = corners.near_kv_tokens](const TimedStep& step) {
                       return std::max(0.0, step.work.kv_tokens - near);
                     }});
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
    const double error = predict_us(cost, step.work, step.precision) / step.us - 1;
    sum += error * error;
  }
  return sum;
}

Status validate(std::span<const TimedStep> steps) {
  for (const TimedStep& step : steps) {
    const double depth = depth_of(step);
    if (!std::isfinite(step.us) || step.us <= 0 || depth <= 0 || depth > 1 + kSameDepth) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "a step of {:.0f} tokens took {} us through {} of the layers: times must be "
          "above 0 and steps go through layers",
          step.work.tokens, step.us, depth);
    }
  }
  return {};
}

Result<StepCost> fit_at(std::span<const TimedStep> steps, const AllCorners& corners) {
  const std::vector<Term> terms = terms_of(steps, corners);
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
  StepCost cost{.near_kv_tokens = corners.near_kv_tokens};
  for (std::size_t at = 0; at < corners.layers.size(); ++at) {
    cost.layers[at].bend_tokens = corners.layers[at].bend_tokens;
    cost.layers[at].tile_tokens = corners.layers[at].tile_tokens;
    cost.layers[at].pass_tokens = corners.pass_tokens;
  }
  for (std::size_t i = 0; i < terms.size(); ++i) {
    // What was timed is known, even if it costs nothing next to the rest.
    terms[i].coefficient(cost) = std::max(weights[i], terms[i].least_us);
  }
  return cost;
}

// The best fit so far.
class Search {
 public:
  Search(std::span<const TimedStep> steps, const std::function<bool()>& goes_on)
      : steps_(steps), goes_on_(goes_on) {}

  // Tries all corners for the precisions from index `first` up to `end`, which share them.
  void try_corners(std::size_t first, std::size_t end) {
    for (const double tile : kTiles) {
      for (const double bend : kBends) {
        AllCorners corners = corners_;
        std::fill(corners.layers.begin() + static_cast<std::ptrdiff_t>(first),
                  corners.layers.begin() + static_cast<std::ptrdiff_t>(end), Corners{bend, tile});
        take_if_better(corners);
      }
    }
  }

  // Tries values of one corner that all precisions share. Returns true if another one fits better.
  bool try_values(double AllCorners::*corner, std::span<const double> values) {
    const double before = corners_.*corner;
    for (const double value : values) {
      AllCorners corners = corners_;
      corners.*corner = value;
      take_if_better(corners);
    }
    return corners_.*corner != before;
  }

  Result<StepCost> best() const {
    if (stopped_) {
      return make_error(ErrorCode::kUnavailable, "the fit was stopped");
    }
    return best_ ? Result<StepCost>(*best_) : Result<StepCost>(*refused_);
  }

 private:
  void take_if_better(const AllCorners& corners) {
    stopped_ = stopped_ || (goes_on_ && !goes_on_());
    if (stopped_) {
      return;
    }
    const auto cost = fit_at(steps_, corners);
    if (!cost.ok()) {
      refused_ = refused_ ? refused_ : cost.error();
    } else if (const double error = squared_error(*cost, steps_); error < least_) {
      least_ = error;
      best_ = *cost;
      corners_ = corners;
    }
  }

  const std::span<const TimedStep> steps_;
  const std::function<bool()>& goes_on_;
  bool stopped_ = false;
  AllCorners corners_{};
  double least_ = std::numeric_limits<double>::infinity();
  std::optional<StepCost> best_;
  std::optional<Error> refused_;
};

}  // namespace

TimedStep in_layers(TimedStep step, int layers, int of) {
  const double part = static_cast<double>(layers) / of;
  for (double& share : step.precision.layers) {
    share *= part;
  }
  step.work.context_tokens *= part;
  step.work.kv_tokens *= part;
  step.work.kv_least_tokens *= part;
  return step;
}

Result<StepCost> fit_step_cost(std::span<const TimedStep> steps,
                               const std::function<bool()>& goes_on) {
  if (const Status valid = validate(steps); !valid.ok()) {
    return valid.error();
  }
  Search search(steps, goes_on);
  search.try_corners(0, kPrecisions.size());
  // Corners of all precisions could make up for those of one that are not found yet. So they are
  // tried last, and if they fit better, the others are tried again.
  bool again = true;
  for (int round = 0; again && round < 2; ++round) {
    for (std::size_t at = 0; at < kPrecisions.size(); ++at) {
      if (has_layers(steps, at)) {
        search.try_corners(at, at + 1);
      }
    }
    const bool passes = search.try_values(&AllCorners::pass_tokens, kPasses);
    again = search.try_values(&AllCorners::near_kv_tokens, kNearKv) || passes;
  }
  return search.best();
}

bool covers(const StepCost& cost, const StepPrecision& precision) {
  for (std::size_t i = 0; i < precision.layers.size(); ++i) {
    if (precision.layers[i] > 0 && !cost.layers[i].is_known()) {
      return false;
    }
  }
  return cost.logits_at(precision.embeddings).is_known();
}

PredictionError prediction_error(const StepCost& cost, std::span<const TimedStep> steps,
                                 int least_tokens) {
  PredictionError error;
  for (const TimedStep& step : steps) {
    if (step.work.tokens < least_tokens) {
      continue;
    }
    const double one = std::abs(predict_us(cost, step.work, step.precision) / step.us - 1);
    error.mean += one;
    error.worst = std::max(error.worst, one);
    ++error.steps;
  }
  error.mean /= std::max(1, error.steps);
  return error;
}

}  // namespace protean

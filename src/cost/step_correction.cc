#include "cost/step_correction.h"

#include <algorithm>
#include <cmath>

namespace protean {
namespace {

constexpr double kRate = 0.1;         // share of an error that a step corrects
constexpr double kMostError = 0.25;   // logarithm; larger errors count as this
constexpr double kMachineWeight = 4;  // weight of the machine's factor against a precision's own

}  // namespace

void StepCorrection::step_done(const LayerShares& layers, double predicted_us, double took_us) {
  if (!std::isfinite(predicted_us) || !std::isfinite(took_us) || predicted_us <= 0 ||
      took_us <= 0) {
    return;
  }
  const double error = std::log(took_us / predicted_us) - log_factor(layers);
  const double move = kRate * std::clamp(error, -kMostError, kMostError);
  // Normalised least mean squares: the step's own factor moves by `move`.
  double weight = kMachineWeight;
  for (const double share : layers) {
    weight += share * share;
  }
  machine_ += move * kMachineWeight / weight;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    own_[i] += move * layers[i] / weight;
  }
}

double StepCorrection::log_factor(const LayerShares& layers) const {
  double sum = machine_;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    sum += layers[i] * own_[i];
  }
  return sum;
}

double StepCorrection::factor(const LayerShares& layers) const {
  return std::exp(log_factor(layers));
}

double StepCorrection::factor(Precision precision) const {
  LayerShares layers{};
  layers[index_of(precision)] = 1;
  return factor(layers);
}

}  // namespace protean

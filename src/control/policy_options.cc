#include "control/policy_options.h"

#include <algorithm>

#include "cost/memory.h"

namespace protean {

PolicyOptions options_for(MorphMode mode) {
  PolicyOptions options;
  if (mode == MorphMode::kAccuracy) {
    options.late_per_nat *= kQualityStep;
  } else if (mode == MorphMode::kPerformance) {
    options.late_per_nat /= kQualityStep;
  }
  return options;
}

QualityLoss typical_loss() {
  QualityLoss loss;
  const auto set = [](auto& of, Precision precision, double nats) {
    of[index_of(precision)] = nats;
  };
  set(loss.layers, Precision::kW8, 0.0002);
  set(loss.layers, Precision::kW8A8, 0.0008);
  set(loss.layers, Precision::kW8A7, 0.0025);
  set(loss.layers, Precision::kW4, 0.0225);
  set(loss.layers, Precision::kW4A8, 0.0225);
  set(loss.layers, Precision::kW3, 0.107);
  for (const Precision precision : {Precision::kW8, Precision::kW8A8, Precision::kW8A7}) {
    set(loss.embeddings, precision, 0.0002);
  }
  return loss;
}

namespace {

// Returns a half's share of the weights of all layers.
double share_of(const ModelSpec& spec, Component half) {
  return static_cast<double>(component_bytes(spec, half, Precision::kF32)) /
         static_cast<double>(layer_bytes(spec, Precision::kF32)) / std::max(1, spec.layers);
}

}  // namespace

void set_measured(Precision precision, Precision of, const std::vector<LayerLoss>& losses,
                  const ModelSpec& spec, QualityLoss& loss) {
  const double rounding =
      std::max(0.0, loss.layers[index_of(precision)] - loss.layers[index_of(of)]);
  std::vector<LayerLoss>& measured = loss.measured[index_of(precision)];
  measured = losses;
  for (LayerLoss& layer : measured) {
    for (const Component half : kLayerHalves) {
      layer[static_cast<std::size_t>(half)] += share_of(spec, half) * rounding;
    }
  }
}

double kl_nats(const QualityLoss& loss, const FormBounds& bounds, const Form& form) {
  const auto known = [&](std::size_t layer, Component half, Precision precision) {
    const std::vector<LayerLoss>& measured = loss.measured[index_of(precision)];
    return measured.empty() ? share_of(bounds.spec, half) * loss.layers[index_of(precision)]
                            : measured[layer][static_cast<std::size_t>(half)];
  };
  // Fewer bits never lose less, though one loss may be measured and another one typical.
  const auto loss_of = [&](std::size_t layer, Component half, Precision precision) {
    double nats = known(layer, half, precision);
    for (const Precision rung : bounds.ladder) {
      nats = weight_bits(rung) > weight_bits(precision) ? std::max(nats, known(layer, half, rung))
                                                        : nats;
    }
    return nats;
  };
  double nats = 0;
  for (std::size_t i = 0; i < form.layer_precision.size(); ++i) {
    for (const Component half : kLayerHalves) {
      nats += std::max(0.0, loss_of(i, half, form.layer_precision[i].of(half)) -
                                loss_of(i, half, bounds.full.layer_precision[i].of(half)));
    }
  }
  return nats + std::max(0.0, loss.embeddings[index_of(form.embeddings)] -
                                  loss.embeddings[index_of(bounds.full.embeddings)]);
}

}  // namespace protean

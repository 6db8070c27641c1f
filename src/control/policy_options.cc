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

double kl_nats(const QualityLoss& loss, const FormBounds& bounds, const Form& form) {
  double nats = 0;
  for (const Component half : kLayerHalves) {
    const double weights =
        static_cast<double>(component_bytes(bounds.spec, half, Precision::kF32)) /
        static_cast<double>(layer_bytes(bounds.spec, Precision::kF32));
    for (std::size_t i = 0; i < form.layer_precision.size(); ++i) {
      const double now = loss.layers[index_of(form.layer_precision[i].of(half))];
      const double full = loss.layers[index_of(bounds.full.layer_precision[i].of(half))];
      nats += weights * std::max(0.0, now - full);
    }
  }
  nats /= static_cast<double>(std::max<std::size_t>(1, form.layer_precision.size()));
  return nats + std::max(0.0, loss.embeddings[index_of(form.embeddings)] -
                                  loss.embeddings[index_of(bounds.full.embeddings)]);
}

}  // namespace protean

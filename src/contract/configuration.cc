#include "contract/configuration.h"

#include <fmt/format.h>

namespace protean {

std::string_view to_string(WeightMethod method) {
  switch (method) {
    case WeightMethod::kNearest:
      return "rtn";
    case WeightMethod::kGptq:
      return "gptq";
    case WeightMethod::kAwq:
      return "awq";
  }
  return "?";
}

std::string to_string(const Pruning& pruning) {
  switch (pruning.kind) {
    case PruningKind::kNone:
      return "none";
    case PruningKind::kTwoOfFour:
      return "2:4";
    case PruningKind::kStructured:
      return fmt::format("structured {}%", pruning.percent);
  }
  return "?";
}

std::string weights_name(const Configuration& configuration) {
  std::string name(to_string(configuration.weights));
  if (configuration.method != WeightMethod::kNearest) {
    name += fmt::format(" {}", to_string(configuration.method));
  }
  if (configuration.pruning.kind != PruningKind::kNone) {
    name += fmt::format(" {}", to_string(configuration.pruning));
  }
  return name;
}

std::string to_string(const Configuration& configuration) {
  return fmt::format("TP {} x PP {}, {}, KV {}", configuration.tensor, configuration.stages,
                     weights_name(configuration), to_string(configuration.kv));
}

}  // namespace protean

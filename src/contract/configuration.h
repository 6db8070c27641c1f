#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "contract/form.h"
#include "contract/precision.h"

namespace protean {

// How weights are rounded to a quantised precision. It changes the quality of answers and neither
// the bytes nor the time of a step.
enum class WeightMethod : std::uint8_t { kNearest, kGptq, kAwq };

std::string_view to_string(WeightMethod method);

enum class PruningKind : std::uint8_t {
  kNone,
  kTwoOfFour,   // two of four consecutive weights of an output are 0 (Wanda)
  kStructured,  // whole heads and neurons are removed (LLM-Pruner)
};

// Which weights of the layers a model does without.
struct Pruning {
  PruningKind kind = PruningKind::kNone;
  int percent = 0;  // the share of the layers' weights that kStructured removes
  friend bool operator==(const Pruning&, const Pruning&) = default;
};

std::string to_string(const Pruning& pruning);  // "none", "2:4", "structured 25%"

// A way to deploy a model (iServe section 2): how many devices share it and how, and how its
// weights and its KV cache are stored.
struct Configuration {
  int tensor = 1;  // devices that share each layer (TP)
  int stages = 1;  // runs of consecutive layers, each on devices of its own (PP)
  Precision weights = Precision::kBf16;
  WeightMethod method = WeightMethod::kNearest;
  KvPrecision kv = KvPrecision::kBf16;
  Pruning pruning;

  int devices() const { return tensor * stages; }
  // The precision at which its layers are stored and multiplied: s24 for 2:4 of bf16.
  Precision stored() const {
    return pruning.kind == PruningKind::kTwoOfFour ? Precision::kS24 : weights;
  }
  friend bool operator==(const Configuration&, const Configuration&) = default;
};

std::string weights_name(const Configuration& configuration);  // "bf16", "w4 gptq", "bf16 2:4"
std::string to_string(const Configuration& configuration);     // "TP 4 x PP 2, w4 gptq, KV int8"

}  // namespace protean

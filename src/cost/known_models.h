#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "contract/model_spec.h"

namespace protean {

// The sizes of a published model, without its weights: for random weights of real sizes, and to say
// what a model would need.
struct KnownModel {
  std::string_view name;
  ModelSpec spec;
  int experts = 0;  // experts of a layer; 0: its MLP is dense
};

std::span<const KnownModel> known_models();

// Finds a model by its name, in which case does not matter. Fails if the name is not known, and
// names those that are. With `dense`, only dense models count.
Result<KnownModel> find_known_model(const std::string& name, bool dense);

}  // namespace protean

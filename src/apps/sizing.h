#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/machine.h"
#include "apps/options.h"
#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "cost/pages.h"

namespace protean {

// The form a model starts in, and what follows from it.
struct Sizing {
  DeviceSpec device;
  Form form;
  PageBudget budget;                   // of layers and KV
  std::int64_t largest_kv_blocks = 0;  // where all layers are at the lowest precision they may have
  int max_model_len = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::vector<std::string> warnings;
};

// What --dtype names.
Result<Precision> dtype_precision(const std::string& dtype);

// Turns what the user said, or left to us, into numbers that fit this machine.
Result<Sizing> choose_sizing(const ModelOptions& options, const ModelSpec& spec,
                             const Machine& machine);

}  // namespace protean

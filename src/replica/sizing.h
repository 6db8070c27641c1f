#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "cost/pages.h"
#include "host/cpu_share.h"
#include "host/machine.h"
#include "replica/model_options.h"

namespace protean {

// The form a model starts in, and what follows from it.
struct Sizing {
  DeviceSpec device;
  CpuShare cpus;  // of the device
  Form form;
  PageBudget budget;                   // of layers and KV
  std::int64_t largest_kv_blocks = 0;  // where all layers are at the lowest precision they may have
  int max_model_len = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::vector<std::string> warnings;
};

// What --dtype names; "auto" is the highest that the checkpoint keeps a half of a layer in.
Result<Precision> dtype_precision(const std::string& dtype, const StoredWeights& stored);

// Turns what the user said, or left to us, into numbers that fit this machine.
Result<Sizing> choose_sizing(const ModelOptions& options, const ModelSpec& spec,
                             const Machine& machine);

// The longest sequence must fit the KV cache as large as it may become: what the user left to us is
// shortened to that, with a warning, what was asked for is an error.
Status fit_length(const ModelOptions& options, const ModelSpec& spec, std::int64_t most_blocks,
                  Sizing& sizing);

}  // namespace protean

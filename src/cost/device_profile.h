#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "cost/step_time.h"

namespace protean {

// The time of a message among devices of this machine, and of a sum if none was measured
// (LayersCost::sums): the order of what a wake-up and a cache line take between two cores.
inline constexpr Transfer kAssumedTransfer = {.us = 5, .bytes_per_us = 4000};

// What a device reads, computes and sends, as far as the time of a step depends on it: the roofline
// of a device on which no fingerprint was run. Rates are what was achieved, not what the maker
// promises.
struct DeviceProfile {
  std::string_view name;
  std::int64_t memory_bytes = 0;
  double weight_bytes_per_us = 0;    // reads matrices, in a step of few tokens
  double kv_bytes_per_us = 0;        // reads keys and values
  double operations_per_us = 0;      // multiplies bf16 matrices; a multiply-add counts two
  double layer_us = 0;               // a layer's norms, activations and sums for few tokens
  double token_element_us = 0;       // the same for each token and element of the hidden state
  std::array<Transfer, 3> reduce{};  // all-reduce among 2, 4 and 8 devices
  Transfer send;                     // sends rows to the next stage
  std::string_view source;           // where these numbers come from
};

// Returns the built-in profile of this name, in which case does not matter. Fails if there is none,
// and names those that there are.
Result<DeviceProfile> find_device_profile(std::string_view name);

// How a device stores what it serves.
struct StoredAs {
  Precision weights = Precision::kBf16;
  KvPrecision kv = KvPrecision::kBf16;
};

// Predicts the steps of a model on `tensor` devices that share each layer (1, 2, 4 or 8): reading
// weights or multiplying, whichever takes longer, plus all-reduces. Quantised and 2:4 weights are
// multiplied at the rate of bf16. Knows layers at `as.weights` only.
StepCost roofline_cost(const DeviceProfile& device, const ModelSpec& spec, int tensor,
                       const StoredAs& as);

}  // namespace protean

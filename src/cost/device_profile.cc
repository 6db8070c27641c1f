#include "cost/device_profile.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/nearest.h"
#include "base/same_letters.h"
#include "base/units.h"
#include "cost/memory.h"

namespace protean {
namespace {

constexpr int kHalves = 2;        // halves of a layer; each ends in an all-reduce
constexpr int kElementBytes = 2;  // bytes of an activation on these devices

// Rates of A100, H100 and A40 are medians of Vidur's profiles (github.com/microsoft/vidur, MIT) of
// Llama-2-70B: matrices at 1 and at 4,096 tokens on one device, the other kernels of a layer,
// all-reduces and messages of up to 200 kB, and of 30 to 70 MB for the rate.
// bench/intents/profiles.py computes them.
constexpr std::array<DeviceProfile, 5> kProfiles = {{
    {.name = "A100",
     .memory_bytes = 80 * kGiB,
     .weight_bytes_per_us = 1596e3,
     .kv_bytes_per_us = 2000e3,
     .operations_per_us = 238e6,
     .layer_us = 48,
     .token_element_us = 0.357 / 8192,
     .reduce = {{{53, 172e3}, {60, 113e3}, {38, 97e3}}},
     .send = {16, 239e3},
     .source = "Vidur's profiles of A100 80 GB in a DGX"},
    {.name = "H100",
     .memory_bytes = 80 * kGiB,
     .weight_bytes_per_us = 2886e3,
     .kv_bytes_per_us = 3350e3,
     .operations_per_us = 690e6,
     .layer_us = 33,
     .token_element_us = 0.204 / 8192,
     .reduce = {{{31, 297e3}, {40, 247e3}, {30, 206e3}}},
     .send = {8, 360e3},
     .source = "Vidur's profiles of H100 80 GB in a DGX"},
    {.name = "A40",
     .memory_bytes = 48 * kGiB,
     .weight_bytes_per_us = 535e3,
     .kv_bytes_per_us = 696e3,
     .operations_per_us = 111e6,
     .layer_us = 29,
     .token_element_us = 0.702 / 8192,
     .reduce = {{{47, 38e3}, {65, 15.7e3}, {152, 13.4e3}}},
     .send = {26, 4e3},
     .source =
         "Vidur's profiles of A40; all-reduces of pairs with NVLink from A100 pairs, the rate "
         "by link; among 8 from 4 by a ring's steps"},
    {.name = "A6000",
     .memory_bytes = 48 * kGiB,
     .weight_bytes_per_us = 590e3,
     .kv_bytes_per_us = 768e3,
     .operations_per_us = 115e6,
     .layer_us = 29,
     .token_element_us = 0.702 / 8192,
     .reduce = {{{47, 38e3}, {65, 15.7e3}, {152, 13.4e3}}},
     .send = {26, 4e3},
     .source =
         "the A40's profile, scaled by memory bandwidth (768 to 696 GB/s) and bf16 operations "
         "(154.8 to 149.7 T/s)"},
    {.name = "H20",
     .memory_bytes = 96 * kGiB,
     .weight_bytes_per_us = 3446e3,
     .kv_bytes_per_us = 4000e3,
     .operations_per_us = 103e6,
     .layer_us = 33,
     .token_element_us = 0.204 / 8192,
     .reduce = {{{31, 297e3}, {40, 247e3}, {30, 206e3}}},
     .send = {8, 360e3},
     .source = "the H100's profile, scaled by memory bandwidth (4.0 to 3.35 TB/s) and bf16 "
               "operations (148 to 989 T/s)"},
}};

double matrices(const ModelSpec& spec, Component component, Precision precision) {
  return static_cast<double>(matrices_bytes(spec, component, precision));
}

double layer_matrices(const ModelSpec& spec, Precision precision) {
  return matrices(spec, Component::kAttention, precision) +
         matrices(spec, Component::kMlp, precision);
}

// A matrix of so many weights, each of which a row multiplies once: reading hides the first rows.
struct Roof {
  double read_us = 0;
  double row_us = 0;
};

Roof roof_of(const DeviceProfile& device, double bytes, double weights) {
  return {bytes / device.weight_bytes_per_us, 2 * weights / device.operations_per_us};
}

// The time of the all-reduces of a layer for `rows` rows.
Transfer reduces_of_layer(const DeviceProfile& device, int tensor) {
  if (tensor == 1) {
    return {};
  }
  const Transfer& reduce = device.reduce.at(tensor == 2 ? 0 : tensor == 4 ? 1 : 2);
  return {kHalves * reduce.us, reduce.bytes_per_us / kHalves};
}

}  // namespace

Result<DeviceProfile> find_device_profile(std::string_view name) {
  std::vector<std::string> names;
  for (const DeviceProfile& profile : kProfiles) {
    if (same_letters(profile.name, name)) {
      return profile;
    }
    names.emplace_back(profile.name);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "device {} has no built-in profile: use one of {}, or describe devices of this "
                    "machine",
                    name, fmt::join(names, ", "));
}

StepCost roofline_cost(const DeviceProfile& device, const ModelSpec& spec, int tensor,
                       const StoredAs& as) {
  check(tensor == 1 || tensor == 2 || tensor == 4 || tensor == 8,
        "profiles know all-reduces among 2, 4 and 8 devices");
  const double layers = spec.layers;
  const double weights = layer_matrices(spec, Precision::kF32) / 4 / tensor;
  const Roof layer = roof_of(device, layer_matrices(spec, as.weights) / tensor, weights);
  const Transfer reduce = reduces_of_layer(device, tensor);
  const double row_bytes = static_cast<double>(spec.hidden) * kElementBytes;
  const double reduce_row_us = reduce.bytes_per_us > 0 ? row_bytes / reduce.bytes_per_us : 0;
  const double other_row_us = device.token_element_us * spec.hidden;
  StepCost cost;
  cost.of(as.weights) = {
      .step_us = layers * (layer.read_us + device.layer_us + reduce.us),
      .token_us = layers * (reduce_row_us + other_row_us),
      .more_token_us = layers * (layer.row_us + reduce_row_us + other_row_us),
      .bend_tokens = std::max(1.0, layer.read_us / layer.row_us),
  };
  const double head = static_cast<double>(spec.vocab) * spec.hidden / tensor;
  const Precision embeddings = default_embeddings_precision(as.weights);
  const auto head_bytes = static_cast<double>(vocab_matrix_bytes(spec, embeddings)) / tensor;
  cost.logits_at(embeddings) = {.step_us = head_bytes / device.weight_bytes_per_us,
                                .row_us = 2 * head / device.operations_per_us};
  const AttentionSpec& attention = spec.attention;
  // A query multiplies the key and the value of each position it sees.
  cost.context_token_us =
      layers * 4.0 * attention.heads * attention.head_dim / device.operations_per_us / tensor;
  cost.kv_token_us =
      static_cast<double>(kv_token_bytes(spec, as.kv)) / device.kv_bytes_per_us / tensor;
  return cost;
}

}  // namespace protean

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "contract/form.h"
#include "contract/holding.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "cost/device_profile.h"
#include "cost/step_time.h"
#include "cost/step_work.h"

namespace protean {

// What steps of a model cost on devices of one kind that compute together, and what goes between
// the devices.
struct GroupCost {
  static constexpr std::size_t kDegrees = 4;

  // Steps of the whole model on 1, 2, 4 and 8 devices that share every layer.
  std::array<StepCost, kDegrees> shared;
  Transfer rows;                // how a step's activations go to other devices
  Transfer exchange;            // how KV and weights go from one device to another
  double activation_bytes = 4;  // bytes of an element of the hidden state
  // So many devices receive rows, KV and weights over one link; 0: no transfer waits for another.
  int devices_on_link = 0;

  // Returns the cost on as many devices, or the next smaller number that is known.
  const StepCost& on(std::size_t devices) const;
};

// Returns the roofline of devices with a built-in profile, for layers at any of `layers`.
GroupCost group_cost(const DeviceProfile& device, const ModelSpec& spec,
                     std::span<const Precision> layers, KvPrecision kv);
// Returns the cost on devices that each take what `alone` says. Times in layers and LM head are
// divided among devices that share them, which add two sums for each layer.
GroupCost group_cost(const StepCost& alone, const ModelSpec& spec,
                     std::span<const Precision> layers, const Transfer& sums);

// Returns the cost on devices that divide each sequence's tokens and hold all weights (sequence
// parallelism, LoongServe), each of which takes what `alone` says. In each layer the KV of a step's
// tokens goes around all devices, which `exchange` times, in addition to what they compute; queries
// of decodes and their results cost two messages.
GroupCost sequence_cost(const StepCost& alone, const ModelSpec& spec, KvPrecision kv,
                        const Transfer& exchange);

// Consecutive components of a model that the same devices compute, and those devices: one copy, or
// several of which each computes rows of its own.
struct Stretch {
  DeviceWork part;
  std::vector<Copy> copies;
};

// Returns the way of a step through the devices of a form.
std::vector<Stretch> stretches_of(const ModelSpec& spec, const Form& form);

// Returns what steps cost on the devices of a form, one or several: on those that share layers, or
// of stages on the slowest one, because as many steps are in flight.
StepCost cost_of(const GroupCost& cost, const ModelSpec& spec, const Form& form);

// Returns what steps cost on their way through all devices of a form, stage after stage.
StepCost path_cost_of(const GroupCost& cost, const ModelSpec& spec, const Form& form);

// Returns the KV bytes that each device receives when `hold`, a step of attention, is committed:
// `live` are the blocks of each home that have KV, `homes` the devices of each.
std::vector<std::int64_t> kv_bytes_received(const ModelSpec& spec, const Form& before,
                                            const HoldShards& hold, std::span<const Copy> homes,
                                            std::span<const std::int64_t> live);
// Returns the weight bytes that each device fetches when `hold` is prepared.
std::vector<std::int64_t> weight_bytes_fetched(const ModelSpec& spec, const Form& before,
                                               const HoldShards& hold);

}  // namespace protean

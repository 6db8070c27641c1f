#pragma once

#include <cstdint>
#include <span>

#include "contract/configuration.h"
#include "contract/model_spec.h"
#include "cost/device_profile.h"
#include "cost/fingerprint.h"
#include "cost/step_time.h"

namespace protean {

// The most requests at once that an estimate may be for: it takes a step with all of them.
inline constexpr int kMostPlannedBatch = 4096;

// The requests that an estimate is for: all alike, `batch` of them at once.
struct PlannedLoad {
  int batch = 1;
  int prompt_tokens = 512;
  int output_tokens = 128;

  int context() const { return prompt_tokens + output_tokens; }
};

// The memory of a configuration (iServe sections 5.2 and 6). Every layer takes one block of memory
// on each device of its stage.
struct ConfigurationMemory {
  int tensor = 1;
  std::int64_t block_bytes = 0;   // a layer's share of weights and of KV
  std::int64_t end_bytes = 0;     // embeddings, on each device of the first and of the last stage
  std::int64_t buffer_bytes = 0;  // activations, on each device

  std::int64_t device_bytes(int layers, bool end) const {
    return layers * block_bytes + (end ? end_bytes : 0) + buffer_bytes;
  }
  // Return the bytes of all devices, and those of the device with most, given the layers of each
  // stage.
  std::int64_t total_bytes(std::span<const int> stage_layers) const;
  std::int64_t fullest_bytes(std::span<const int> stage_layers) const;
};

// Returns the memory of a configuration with KV for all requests of the load.
ConfigurationMemory memory_of(const ModelSpec& spec, const Configuration& configuration,
                              const PlannedLoad& load);

// The time of steps of a model as a configuration stores and shares it, all layers on one stage,
// and of messages to the next stage.
struct ConfigurationSteps {
  StepCost cost;
  Transfer send;
  // Stages compute parts of a prompt at the same time, one each (prompt_steps()), as Protean's do.
  // False: a prompt passes them whole, as in iServe section 5.3.
  bool divides_prompts = false;
};

// Returns the latency of a request among others of the load, for stages of equally many layers.
// Stages work concurrently on as many parts of the batch. TPOT is the mean time of a token,
// prompts included that are computed in between: each request that ends is followed by another one,
// so an answer lives through as many prompts as there are other requests. With one request at a
// time, each further stage adds a message and the fixed time of a step to TPOT (iServe
// section 5.3), and if prompts pass the stages whole, to TTFT.
Latency latency_of(const ModelSpec& spec, const Configuration& configuration,
                   const PlannedLoad& load, const ConfigurationSteps& steps);

// Returns the time of one device's steps on a machine whose fingerprint is known, for layers shared
// by `tensor` devices: the time in layers and LM head divided by their number, and two sums among
// them for each layer, as measured (LayersCost::sums), or else as assumed. Two devices read the LM
// head as fast as was measured (LogitsCost::shared_us). Structured pruning scales the time in
// layers by the weights that are left; `whole` has to know what layers at configuration.stored()
// cost.
StepCost divided_cost(const StepCost& whole, const ModelSpec& spec,
                      const Configuration& configuration, const Transfer& assumed);

// Returns LayersCost::sums for layers at a precision, from the times of steps of few and of more
// tokens through layers that two devices share: what these take beyond the halves of what `alone`
// predicts.
Transfer learned_sums(const StepCost& alone, const ModelSpec& spec, Precision weights,
                      const TimedStep& few, const TimedStep& more);

// Returns true if it was measured what devices that share layers at all of these precisions and
// the LM head take.
bool knows_sums(const StepCost& cost, std::span<const Precision> layers);

// Adds what `from` knows, and `to` does not, of devices that share layers and the LM head.
void add_sums(const StepCost& from, StepCost& to);

}  // namespace protean

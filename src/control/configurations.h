#pragma once

#include <span>
#include <vector>

#include "contract/configuration.h"
#include "contract/model_spec.h"

namespace protean {

// The largest TP degree of a configuration: beyond it, all-reduces cost more than they save.
inline constexpr int kMostTensor = 8;

// Returns the configurations that Protean can serve on up to `devices` devices: every TP degree, a
// power of two that divides the KV heads; every number of stages up to the layers; each of
// `precisions`, by every method; KV at bf16 and int8; all weights, or structured pruning by 25 %,
// or 2:4 at bf16.
std::vector<Configuration> configurations_of(const ModelSpec& spec, int devices,
                                             std::span<const Precision> precisions);

// Returns true if a server can load the checkpoint of `spec` as this configuration stores it. It
// rounds weights to nearest and prunes nothing. At bf16, a checkpoint that is pruned 2:4 is loaded
// as 2:4, which has the same values in fewer bytes.
bool loads_as(const ModelSpec& spec, const Configuration& configuration);

// Returns the space of iServe's experiments (section 1), 180 configurations of a model with 8 KV
// heads on 8 devices: TP 1, 2, 4, 8 and PP 1 to 8; 16, 8 and 4 bits and 4 bits by GPTQ with KV at
// 16 and 8 bits, or one of four prunings with 16 bits. The paper names Wanda 2:4 and LLM-Pruner at
// 25 %; the other two here remove 12 and 50 %.
std::vector<Configuration> iserve_configurations(const ModelSpec& spec, int devices);

}  // namespace protean

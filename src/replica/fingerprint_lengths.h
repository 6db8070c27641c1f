#pragma once

#include <cstdint>
#include <vector>

#include "contract/model_spec.h"
#include "cost/step_sizes.h"

namespace protean {

// The lengths of what a fingerprint times, in tokens.
struct FingerprintLengths {
  int sequence = 2;            // the longest
  int prompt = 2;              // the longest
  int chunk = 2;               // the longest of most timed chunks of prompts
  int decode = 2;              // the longest sequence that decodes: what the layers see, at most
  std::int64_t positions = 1;  // that a step of decodes attends to, at most
};

// Returns the lengths for layers of which `timed` has those that are timed, if the KV of a position
// takes so many bytes in them.
FingerprintLengths fingerprint_lengths(const ModelSpec& timed, std::int64_t layers_bytes,
                                       std::int64_t kv_position_bytes);

// Returns the steps that differ in the positions that their rows attend to. Most decodes have few
// sequences, as long as can be, so that reading KV is a large part of their time. In many short
// ones it is a small part, and noise decides what KV costs: a server's steps, which read more of
// it, would be estimated wrongly.
std::vector<StepSizes> attending_steps(const FingerprintLengths& lengths);

}  // namespace protean

#pragma once

#include <memory>

#include "model/checkpoint.h"

namespace protean {

// Returns a view of the checkpoint whose rotary pairs lie half a head apart, as in Hugging Face's
// files. GGUF files of the llama family keep the rows of a pair next to each other; their rows of
// queries and keys are reordered as they are read. Other checkpoints are returned as they are.
std::unique_ptr<Checkpoint> in_half_split_order(std::unique_ptr<Checkpoint> checkpoint);

}  // namespace protean

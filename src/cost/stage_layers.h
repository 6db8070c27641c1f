#pragma once

#include <cstdint>
#include <vector>

#include "contract/form.h"
#include "contract/model_spec.h"

namespace protean {

// What the devices of a pipeline have for weights and KV.
struct StageRoom {
  std::int64_t page_bytes = 0;
  std::vector<std::int64_t> pages;  // of each device of a stage, by stage
  std::int64_t most_blocks = 1;     // more KV blocks are of no use
};

// Returns the layers of each stage, of `tensor` devices each, with which the KV cache holds the
// most blocks: all stages hold the same blocks, each for its layers. Of those divisions, returns
// the even one, else one whose largest stage has the fewest layers. Empty if no division holds a
// block.
std::vector<int> stage_layers_for(const ModelSpec& spec, const Form& form, int tensor,
                                  const StageRoom& room);

}  // namespace protean

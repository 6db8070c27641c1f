#pragma once

#include <cstdint>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/step.h"

namespace protean {

// What a step has to do, counted from its plan. Attention's are means over layers, of which some
// may see a window only.
struct StepWork {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::int64_t logit_rows = 0;
  double context_tokens = 0;  // positions that rows look at, summed over rows
  double kv_tokens = 0;       // positions whose keys and values are read, once for each sequence
};

StepWork work_of(const StepPlan& plan);  // of a model whose layers see everything
StepWork work_of(const StepPlan& plan, const ModelSpec& spec);

// The least that any machine must read and multiply for it.
struct StepDemand {
  double weight_bytes = 0;  // layers and the output projection, once; embeddings of the tokens
  double kv_bytes = 0;
  double operations = 0;  // a multiply-add is two

  double bytes() const { return weight_bytes + kv_bytes; }
};

StepDemand demand_of(const StepWork& work, const ModelSpec& spec, const Form& form);

}  // namespace protean

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "cost/pages.h"

namespace protean {

// Returns the pages that a device of the form takes to prepare the step: for shards that it
// fetches, and for KV.
std::int64_t pages_to_hold(const ModelSpec& spec, const Form& form, const HoldShards& hold,
                           int device, std::int64_t page_bytes);

// Returns how many of the first steps each device can prepare at once, at least 1 if there is one.
std::size_t preparable(const ModelSpec& spec, const Form& form, std::span<const MorphStep> steps,
                       const PageBudget& budget);

}  // namespace protean

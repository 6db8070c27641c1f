#pragma once

#include <string>

#include "contract/model_spec.h"
#include "model/config_fields.h"

namespace protean {

// Reads rotary embeddings and their scaling from a Hugging Face config into a spec whose sizes are
// set. Context that a scaling adds is added to the spec's. Errors are kept by `config`.
void read_rope(ConfigFields& config, const std::string& file, ModelSpec& spec);

// Returns the factor of cosines and sines that YaRN ("YaRN", section 3.4) and longrope ("LongRoPE",
// section 3.3) use for this factor of the context.
double yarn_magnitude(double factor, double scale = 1.0);
double longrope_magnitude(double factor, int original_context);

}  // namespace protean

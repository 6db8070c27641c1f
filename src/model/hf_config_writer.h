#pragma once

#include <boost/json/object.hpp>

#include "base/result.h"
#include "contract/model_spec.h"
#include "contract/request.h"

namespace protean {

// Returns the config.json that read_hf_config() reads back as this model, in bf16. Fails if
// config.json cannot express its rotary frequencies.
Result<boost::json::object> hf_config_of(const ModelSpec& spec,
                                         const GenerationDefaults& generation);

}  // namespace protean

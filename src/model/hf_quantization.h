#pragma once

#include <optional>
#include <string>

#include "model/config_fields.h"
#include "model/packed_codes.h"

namespace protean {

// Reads how a Hugging Face config says that weights are packed as integers; nothing if they are
// not. Errors are kept by `config`.
std::optional<WeightQuantization> read_quantization(ConfigFields& config, const std::string& file);

}  // namespace protean

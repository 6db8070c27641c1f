#pragma once

#include <boost/json/object.hpp>
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "contract/model_spec.h"
#include "contract/request.h"
#include "model/architecture.h"
#include "model/packed_codes.h"

namespace protean {

// The description of a model in a Hugging Face directory's JSON files.
struct HfConfig {
  const ArchitectureRow* row = nullptr;
  ModelSpec spec;  // valid
  GenerationDefaults generation;
  std::optional<WeightQuantization> quantization;  // how matrices are packed; nothing: they are not
};

// Reads config.json, and generation_config.json if it exists.
Result<HfConfig> read_hf_config(const std::filesystem::path& directory);

// Parse the same from JSON objects; `name` is for messages. A setting that changes the model's
// answers and is not supported is refused by name.
Result<HfConfig> parse_hf_config(const boost::json::object& object, const std::string& name);
Status parse_generation_config(const boost::json::object& object, const std::string& name,
                               const ModelSpec& spec, GenerationDefaults& generation);

}  // namespace protean

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

// What a Hugging Face directory's JSON files say about a model, before any weight is looked at.
struct HfConfig {
  const ArchitectureRow* row = nullptr;
  ModelSpec spec;  // valid
  GenerationDefaults generation;
  std::optional<WeightQuantization> quantization;  // of matrices that are stored packed
};

// config.json, and generation_config.json where it is.
Result<HfConfig> read_hf_config(const std::filesystem::path& directory);

// The same from JSON objects; names are for messages. Settings that would change the model's
// answers and are not understood are refused by name.
Result<HfConfig> parse_hf_config(const boost::json::object& object, const std::string& name);
Status parse_generation_config(const boost::json::object& object, const std::string& name,
                               const ModelSpec& spec, GenerationDefaults& generation);

}  // namespace protean

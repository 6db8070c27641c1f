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

// The description of a model from the JSON files of a Hugging Face directory.
struct HfConfig {
  const ArchitectureRow* row = nullptr;
  ModelSpec spec;  // validated
  GenerationDefaults generation;
  std::optional<WeightQuantization>
      quantization;  // the format of packed matrices, if there are any
};

// Reads config.json, and generation_config.json if there is one.
Result<HfConfig> read_hf_config(const std::filesystem::path& directory);

// Parse the JSON objects of these files. `name` is for errors. Fail for settings that would change
// the model's answers and are not supported.
Result<HfConfig> parse_hf_config(const boost::json::object& object, const std::string& name);
Status parse_generation_config(const boost::json::object& object, const std::string& name,
                               const ModelSpec& spec, GenerationDefaults& generation);

}  // namespace protean

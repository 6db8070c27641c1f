#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/configuration.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "control/ranking.h"

namespace protean {

// A model as it was served for a measurement.
struct MeasuredForm {
  std::filesystem::path path;
  const ModelSpec& spec;
  const Form& form;
};

// Returns how a configuration of `reference` stores what was measured: another precision of the
// same model, or a quantised or pruned copy. Nothing if none does, such as for another model of the
// same sizes or a copy that an unknown method made, or if the reference is not at full precision.
std::optional<Configuration> stored_as(const MeasuredForm& measured, const MeasuredForm& reference);

// Keeps for plans of the reference how much the perplexity is above its own, in the folder that
// --variant-cache names. Does nothing if no configuration stores what was measured.
Status keep_quality(const MeasuredForm& measured, const MeasuredForm& reference,
                    double perplexity_ratio, const std::filesystem::path& folder);

// A model in the configuration map.
struct MappedModel {
  const std::string& identity;
  const ModelSpec& spec;
};

// Returns the perplexity of the model as each candidate stores it, over that of the unchanged
// model; nothing where it was not measured.
std::vector<std::optional<double>> measured_ratios(
    const MappedModel& model, std::span<const EstimatedConfiguration> candidates,
    const std::filesystem::path& folder);

}  // namespace protean

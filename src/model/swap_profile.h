#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "model/variant_file.h"

namespace protean {

// A model's swapping order at one precision (MorphServe appendix A), and what halves of layers lose
// at it, stored in its variant folder. The target whose change costs least comes first. Scores are
// by place in `order`.
struct SwapProfile {
  Precision precision = Precision::kW4;
  bool halves = false;
  std::string metric;               // "cosine" or "l2"
  std::array<double, 3> weights{};  // weights of the scores LTS, LRS and MDS
  std::int64_t tokens = 0;          // length of the calibration text
  std::vector<SwapTarget> order;
  std::vector<double> importance;  // LIS when it was chosen
  std::vector<double> transformation;
  std::vector<double> replacement;
  // What each half of each layer loses if it alone is lowered (SwapProbe::divergence). Empty in
  // profiles of earlier versions.
  std::vector<LayerLoss> kl_nats;
};

// Names a profile. `source` is the origin of the lowered weights: the model itself, or a copy that
// was quantised in another way.
struct SwapProfileKey {
  ModelIdentity model;
  ModelIdentity source;
  Precision precision = Precision::kW4;
  bool halves = false;
};

// Saves a profile. `directory` is VariantStore::model_directory(). The key must have the profile's
// precision and halves.
Status save_swap_profile(const std::filesystem::path& directory, const SwapProfileKey& key,
                         const SwapProfile& profile);

// Loads a profile. Fails with kNotFound if there is none, and with kCorrupt if the file belongs to
// another model or does not order this model's targets.
Result<SwapProfile> load_swap_profile(const std::filesystem::path& directory,
                                      const SwapProfileKey& key, const ModelSpec& spec);

}  // namespace protean

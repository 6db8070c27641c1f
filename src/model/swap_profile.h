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

// One model's swapping sequence at one precision (MorphServe appendix A), as it is kept beside its
// variants: first the target whose change costs least. Scores are by place in `order`.
struct SwapProfile {
  Precision precision = Precision::kW4;
  bool halves = false;
  std::string metric;               // "cosine" or "l2"
  std::array<double, 3> weights{};  // of LTS, LRS and MDS
  std::int64_t tokens = 0;          // measured with
  std::vector<SwapTarget> order;
  std::vector<double> importance;  // LIS, when it was chosen
  std::vector<double> transformation;
  std::vector<double> replacement;
};

// Which of a model's profiles. `source` is where the lowered weights came from: the model itself,
// or a copy that was quantised in another way.
struct SwapProfileKey {
  ModelIdentity model;
  ModelIdentity source;
  Precision precision = Precision::kW4;
  bool halves = false;
};

// `directory` is VariantStore's model_directory. The key's precision and halves are the profile's.
Status save_swap_profile(const std::filesystem::path& directory, const SwapProfileKey& key,
                         const SwapProfile& profile);

// kNotFound where there is none; kCorrupt where it is another model's or no order of this one's
// targets.
Result<SwapProfile> load_swap_profile(const std::filesystem::path& directory,
                                      const SwapProfileKey& key, const ModelSpec& spec);

}  // namespace protean

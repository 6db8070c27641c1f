#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "model/variant_file.h"

namespace protean {

// What goes to fewer bits, and comes back, in one piece: a layer, or half of one.
struct SwapUnit {
  int layer = 0;
  std::optional<LayerHalf> half;
  friend bool operator==(const SwapUnit&, const SwapUnit&) = default;
};

// The units of a model in the order it runs them.
std::vector<SwapUnit> swap_units(const ModelSpec& spec, bool halves);

// One model's swapping sequence at one precision (MorphServe appendix A), as it is kept beside its
// variants: first the unit whose change costs least. Scores are by place in `order`.
struct SwapProfile {
  Precision precision = Precision::kW4;
  bool halves = false;
  std::string metric;               // "cosine" or "l2"
  std::array<double, 3> weights{};  // of LTS, LRS and MDS
  std::int64_t tokens = 0;          // measured with
  std::vector<SwapUnit> order;
  std::vector<double> importance;  // LIS, when it was chosen
  std::vector<double> transformation;
  std::vector<double> replacement;
};

// `directory` and `model` are VariantStore's.
Status save_swap_profile(const std::filesystem::path& directory, const ModelIdentity& model,
                         const SwapProfile& profile);

// Which of a model's profiles.
struct SwapProfileKey {
  ModelIdentity model;
  Precision precision = Precision::kW4;
  bool halves = false;
};

// kNotFound where there is none; kCorrupt where it is another model's or no order of this one's
// units.
Result<SwapProfile> load_swap_profile(const std::filesystem::path& directory,
                                      const SwapProfileKey& key, const ModelSpec& spec);

// What serving swaps first: the profile's order, or front to back where there is no profile or no
// directory. One that is there and cannot be used is an error.
Result<std::vector<SwapUnit>> load_swap_order(const std::filesystem::path& directory,
                                              const SwapProfileKey& key, const ModelSpec& spec);

}  // namespace protean

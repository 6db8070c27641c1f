#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "contract/model_spec.h"
#include "engine/morph_config.h"
#include "replica/model_files.h"
#include "replica/replica.h"
#include "replica/sizing.h"

namespace protean {

// What a server's form may become while it serves.
struct MorphOptions {
  std::string mode = "off";
  std::string rule = "steady";
  std::string precisions = "auto";
  std::string quality_floor = "none";
  std::vector<std::string> variants;  // PRECISION=MODEL
  std::string variant_cache;
  std::string variant_cache_size = "64GiB";
  double forecast_s = 0;
  double slo_ttft_ms = 2000;
  bool halves = false;
};
void add_morph_options(CLI::App& app, MorphOptions& options);

// What serves the model: its size and, if its form may change, how, and where variants come from.
Result<ReplicaOptions> choose_replica(ModelOptions model, bool may_morph,
                                      const MorphOptions& options, const ModelFiles& files);

// What a policy may ask for at any moment is packed before serving; a warning where that fails.
void pack_variants(const ReplicaOptions& replica);

}  // namespace protean

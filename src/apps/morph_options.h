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

// How the form of a server may change while it serves.
struct MorphOptions {
  std::string mode = "off";
  std::string rule = "predict";
  std::string precisions = "auto";
  std::string quality_floor = "none";
  std::vector<std::string> variants;  // PRECISION=MODEL
  std::string variant_cache;
  std::string variant_cache_size = "64GiB";
  double slo_ttft_ms = 2000;
  double slo_tpot_ms = 0;
  bool halves = false;
};
void add_morph_options(CLI::App& app, MorphOptions& options);

// Chooses the size of the replica for what `machine` has free and, if its form may change, the
// policy, its bounds and the variants.
Result<ReplicaOptions> choose_replica(ModelOptions model, bool may_morph,
                                      const MorphOptions& options, const ModelFiles& files,
                                      const Machine& machine);

}  // namespace protean

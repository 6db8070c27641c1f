#pragma once

#include <CLI/CLI.hpp>
#include <memory>
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
  bool kv = true;
};
void add_morph_options(CLI::App& app, MorphOptions& options);

// Chooses the size of a replica of a model with these sizes for what `machine` has free and, if its
// form may change, the policy and its bounds, which lower layers front to back.
Result<ReplicaOptions> size_replica(ModelOptions model, bool may_morph, const MorphOptions& options,
                                    const ModelSpec& spec, const Machine& machine);

// Chooses the same for a model whose files are open and, if its form may change, the variants and
// the order of layers that was profiled.
Result<ReplicaOptions> choose_replica(const ModelOptions& model, bool may_morph,
                                      const MorphOptions& options, const ModelFiles& files,
                                      const Machine& machine);

// Chooses variants and the order of layers anew for such a replica, whose form may change, when the
// files of the model are others. Changes nothing if it fails.
Status renew_variants(const ModelOptions& model, const MorphOptions& options,
                      const ModelFiles& files, ReplicaOptions& replica);

}  // namespace protean

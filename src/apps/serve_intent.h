#pragma once

#include <string>

#include "base/result.h"
#include "replica/model_files.h"
#include "replica/model_options.h"

namespace protean {

// Chooses how to serve a model for an intent: sets the precisions of weights and KV and the
// division among devices in `options` to the configuration that `protean plan` would choose of
// those that the checkpoint can be loaded as, and logs it. Fails if the options set one of them
// already, or describe devices in a file.
Status choose_for_intent(const std::string& intent, const std::string& variant_cache,
                         const ModelFiles& files, ModelOptions& options);

}  // namespace protean

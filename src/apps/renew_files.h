#pragma once

#include "apps/served_models.h"
#include "base/result.h"
#include "replica/model_files.h"

namespace protean {

// Fails if these files are of another model: weights alone may differ.
Status check_same_model(const OpenModel& model, const ModelFiles& files);

// Opens the files of a model that is not loaded anew if they were written since they were opened.
// Fails if they cannot be opened, or are those of another model.
Status renew_files(OpenModel& model);

}  // namespace protean

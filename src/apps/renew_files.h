#pragma once

#include "apps/served_models.h"
#include "base/result.h"
#include "replica/model_files.h"

namespace protean {

// Fails if these files are of another model: weights alone may differ.
Status check_same_model(const OpenModel& model, const ModelFiles& files);

// Opens the files of a model that is not loaded anew if they were written or replaced since they
// were opened, and chooses the order in which its layers are lowered anew. Files that are gone are
// read as they were. Fails if the files cannot be opened, are those of another model, or have other
// defaults for generation: the model's service keeps those with which it began.
Status renew_files(OpenModel& model);

}  // namespace protean

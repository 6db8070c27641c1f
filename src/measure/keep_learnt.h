#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"
#include "model/variant_store.h"

namespace protean {

// Calls `save` with the folder of the model's packed layers. Returns where the result is kept, or
// why it could not be; that is not an error, since the result is printed too.
std::string keep_learnt(const VariantStore& store,
                        const std::function<Status(const std::filesystem::path& directory)>& save);

}  // namespace protean

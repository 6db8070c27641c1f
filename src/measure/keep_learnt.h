#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"
#include "model/variant_store.h"

namespace protean {

// Writes what was learnt of a model beside its packed layers and says where, or why not: what
// cannot be kept is still printed.
std::string keep_learnt(const VariantStore& store,
                        const std::function<Status(const std::filesystem::path& directory)>& save);

}  // namespace protean

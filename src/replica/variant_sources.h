#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "model/variant_store.h"

namespace protean {

// Opens the models that texts like "w4=DIR" name: each holds a precision's weights.
Result<std::map<Precision, VariantSource>> variant_sources(const std::vector<std::string>& texts);

}  // namespace protean

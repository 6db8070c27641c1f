#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "contract/form.h"
#include "model/variant_store.h"

namespace protean {

// --variant w4=DIR: where a precision's weights come from, if not from the model.
void add_variant_option(CLI::App& app, std::vector<std::string>& texts);
Result<std::map<Precision, VariantSource>> variant_sources(const std::vector<std::string>& texts);

}  // namespace protean

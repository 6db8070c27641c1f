#pragma once

#include <string_view>

#include "jinja/ast.h"

namespace protean::jinja {

// Throws Failure with the line for what is not Jinja or not supported.
Syntax parse_template(std::string_view source);

}  // namespace protean::jinja

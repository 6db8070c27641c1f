#pragma once

#include <string_view>

#include "jinja/ast.h"

namespace protean::jinja {

// Throws Failure, with the line, for text that is not Jinja and for tags that are not implemented.
Syntax parse_template(std::string_view source);

}  // namespace protean::jinja

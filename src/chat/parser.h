#pragma once

#include <string_view>

#include "chat/ast.h"

namespace protean::jinja {

// Throws Failure with the line for what is not Jinja or not supported.
Template parse_template(std::string_view source);

}  // namespace protean::jinja

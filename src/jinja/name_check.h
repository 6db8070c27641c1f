#pragma once

#include "jinja/ast.h"

namespace protean::jinja {

// Throws Failure for an unknown filter or test. As in jinja2, names in the branches of an if are
// checked only when they are used, unless they are in a loop or macro inside the branch.
void check_names(const Syntax& parsed);

}  // namespace protean::jinja

#pragma once

#include "jinja/ast.h"

namespace protean::jinja {

// Fails for a filter or test that there is none of, but where jinja2 waits until it is used: in the
// branches of an if, outside of what has names of its own in there (a loop's body, a macro's).
void check_names(const Syntax& parsed);

}  // namespace protean::jinja

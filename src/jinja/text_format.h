#pragma once

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace protean::jinja {

// '%s and %05.2f' % values: Python's conversions s r d i u f F e E g G x X o c and %%.
Value percent_format(Runtime& runtime, const Value& format, const Value& values);
// '{} {0} {name}'.format(...): fields by position and name. Refuses format specifications and
// conversions (after ':' or '!').
Value brace_format(Runtime& runtime, const Value& format, Call& call);

}  // namespace protean::jinja

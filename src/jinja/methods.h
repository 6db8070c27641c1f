#pragma once

// Methods of Python's str, dict, list and tuple that a template may call.

#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace protean::jinja {

// The method as a callable, or undefined when Python has none of that name. One that Python has but
// that changes the object, or that Protean does not offer, is refused by name.
Value bound_method(Runtime& runtime, const Value& object, std::string_view name);

std::span<const NamedBuiltin> text_methods();

}  // namespace protean::jinja

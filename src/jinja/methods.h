#pragma once

// Methods of Python's str, dict, list and tuple that a template may call.

#include <string_view>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace protean::jinja {

// Returns the method as a callable, or undefined if Python has no such method. Refuses methods that
// change the object and those that are not implemented.
Value bound_method(Runtime& runtime, const Value& object, std::string_view name);

std::span<const NamedBuiltin> text_methods();

}  // namespace protean::jinja

#pragma once

// jinja2's filters, tests and global functions by name; nullptr when there is none of that name.

#include <string_view>

#include "base/result.h"
#include "jinja/value.h"

namespace protean::jinja {

Builtin find_filter(std::string_view name);
Error unknown_filter(std::string_view name);  // why find_filter gave none
Builtin find_test(std::string_view name);     // gives a bool
// A global as a value; undefined when there is none. strftime_now is there only with a clock.
Value find_global(Runtime& runtime, std::string_view name);

std::span<const NamedBuiltin> text_filters();
std::span<const NamedBuiltin> number_filters();
std::span<const NamedBuiltin> sequence_filters();
std::span<const NamedBuiltin> selection_filters();
std::span<const NamedBuiltin> web_filters();

// The value at a path like "function.name" or 0 inside an item, as attribute= names it;
// `otherwise`, unless none, stands in for what is not there.
Value at_path(Runtime& runtime, Value item, const Value& path,
              const Value& otherwise = Value::none());
// Text in lower case unless case matters; what sorting and grouping compare.
Value comparison_key(Runtime& runtime, const Value& value, bool case_sensitive);

}  // namespace protean::jinja

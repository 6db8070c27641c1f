#pragma once

// jinja2's filters, tests and global functions by name. The find functions return nullptr for an
// unknown name.

#include <string_view>

#include "base/result.h"
#include "jinja/value.h"

namespace protean::jinja {

Builtin find_filter(std::string_view name);
// Returns the error for a name that find_filter() does not know.
Error unknown_filter(std::string_view name);
Builtin find_test(std::string_view name);  // a test returns a bool
// Returns a global function, or undefined. strftime_now exists only if the Runtime has a time.
Value find_global(Runtime& runtime, std::string_view name);

std::span<const NamedBuiltin> text_filters();
std::span<const NamedBuiltin> number_filters();
std::span<const NamedBuiltin> sequence_filters();
std::span<const NamedBuiltin> selection_filters();
std::span<const NamedBuiltin> web_filters();

// Returns the value at a path such as "function.name" or 0 in `item`, as attribute= names it.
// Returns `otherwise`, unless that is none, if the path does not exist.
Value at_path(Runtime& runtime, Value item, const Value& path,
              const Value& otherwise = Value::none());
// Returns what sorting and grouping compare: text in lower case unless case_sensitive.
Value comparison_key(Runtime& runtime, const Value& value, bool case_sensitive);

}  // namespace protean::jinja

#pragma once

// Finding, cutting and padding text, for str methods and filters. A search from the left takes time
// linear in the text. A search from the right may compare the whole part at every place.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace protean::jinja {

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from);
std::size_t find_last(std::string_view text, std::string_view part);

using Pieces = std::vector<std::string_view>;
// Cut at most `most` times, from the left or from the right. A run of white space is one separator.
Pieces split_at(std::string_view text, std::string_view separator, std::int64_t most);
Pieces split_right(std::string_view text, std::string_view separator, std::int64_t most);
Pieces split_space(std::string_view text, std::int64_t most);
Pieces split_space_right(std::string_view text, std::int64_t most);
Pieces split_lines(std::string_view text, bool keep_ends);

struct Replacement {
  std::string_view from;
  Value to;           // text
  std::int64_t most;  // negative: all
};
MarkedText replace_text(Runtime& runtime, const Value& value, const Replacement& change);

struct Sides {
  bool left, right;
};
// Removes white space if `set` is none, else the characters of `set`.
std::string_view strip_text(Runtime& runtime, std::string_view text, const Value& set, Sides sides);

struct Padding {
  std::int64_t width;  // in characters
  double left_share;   // 0: all on the right; 0.5: Python's center()
};
Value pad(Runtime& runtime, const Value& text, std::string_view fill, Padding padding);

bool has_only_case(std::string_view text, bool upper);  // str.isupper() and str.islower()

}  // namespace protean::jinja

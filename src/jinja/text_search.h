#pragma once

// Finding, cutting and padding text, shared by str methods and filters. Searching from the left is
// linear in the text whatever is searched for; from the right the caller pays for the worst case.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace protean::jinja {

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from);
std::size_t find_last(std::string_view text, std::string_view part);

using Parts = std::vector<std::string_view>;
// At most `most` cuts, counted from the left or from the right; at white space, runs count once.
Parts split_at(std::string_view text, std::string_view separator, std::int64_t most);
Parts split_right(std::string_view text, std::string_view separator, std::int64_t most);
Parts split_space(std::string_view text, std::int64_t most);
Parts split_space_right(std::string_view text, std::int64_t most);
Parts split_lines(std::string_view text, bool keep_ends);

struct Replacement {
  std::string_view from, to;
  std::int64_t most;  // negative: all
};
std::string replace_text(Runtime& runtime, std::string_view text, const Replacement& change);

struct Sides {
  bool left, right;
};
// `set` is none for white space, or the text whose characters go.
std::string_view strip_text(Runtime& runtime, std::string_view text, const Value& set, Sides sides);

struct Padding {
  std::int64_t width;  // in characters
  double left_share;   // 0: all on the right; 0.5: Python's center()
};
Value pad(Runtime& runtime, const Value& text, std::string_view fill, Padding padding);

bool has_only_case(std::string_view text, bool upper);  // str.isupper() and str.islower()

}  // namespace protean::jinja

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace protean::jinja {

struct Wrapping {
  std::int64_t width = 79;  // characters of a line
  bool break_long_words = true;
  bool break_on_hyphens = true;
};

// Python's textwrap.wrap() of one paragraph: its lines, without the white space at which they
// break. Takes time linear in the text. Precondition: width > 0.
std::vector<std::string> wrap_line(std::string_view text, const Wrapping& style);

}  // namespace protean::jinja

#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/text_range.h"

namespace protean::jinja {

// Text with the ranges that the template wrote itself. The rest was given to the template.
struct MarkedText {
  std::string text;
  std::vector<TextRange> from_template;  // ascending and apart; none is empty

  // Keeps the first `bytes` bytes.
  void truncate(std::size_t bytes) {
    text.resize(bytes);
    while (!from_template.empty() && from_template.back().begin >= bytes) from_template.pop_back();
    if (!from_template.empty()) {
      from_template.back().end = std::min(from_template.back().end, bytes);
    }
  }
  void append_from_template(std::string_view part) {
    if (part.empty()) return;
    const TextRange added{text.size(), text.size() + part.size()};
    text += part;
    if (!from_template.empty() && from_template.back().end == added.begin) {
      from_template.back().end = added.end;
    } else {
      from_template.push_back(added);
    }
  }
};

}  // namespace protean::jinja

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace protean {

// Returns the text that a body, a JSON object, has for `key` at its top; nothing if it has none.
// Reads up to that text and skips other values unread, so it is much faster than parsing and checks
// nothing: of a body that is no JSON, it returns anything.
std::optional<std::string> text_field(std::string_view body, std::string_view key);

}  // namespace protean

#pragma once

#include <span>
#include <string>
#include <string_view>

namespace protean {

// Returns the name that `word` is most likely a misspelling of; empty if none is near.
std::string nearest(std::string_view word, std::span<const std::string> names);

}  // namespace protean

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace protean {

// Bytes done of all bytes.
using ProgressCallback = std::function<void(std::int64_t done, std::int64_t total)>;

// A bar on standard error that redraws itself; nothing where standard error is no terminal.
ProgressCallback progress_bar(std::string what);

// To standard output, seen at once.
void print_text(std::string_view text);

}  // namespace protean

#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace protean {

// Writes to standard output and flushes. If that fails (a full disk, a closed pipe), prints why and
// ends the program.
void print_text(std::string_view text);

// Prints one line of a table with two columns.
template <class... Args>
void print_row(std::string_view name, fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format("{:<24}{}\n", name, fmt::format(format, std::forward<Args>(args)...)));
}

// Opens file descriptors 0 to 2 if they are closed, so that no socket or file gets their number and
// our output. Ignores SIGPIPE: writing to a closed pipe is an error.
void secure_standard_streams();

}  // namespace protean

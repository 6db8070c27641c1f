#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace protean {

// To standard output, seen at once. Where nobody can read it any more (a full disk, a closed pipe)
// the program says so and ends.
void print_text(std::string_view text);

// A line of a table of names and what there is to say of each.
template <class... Args>
void print_row(std::string_view name, fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format("{:<24}{}\n", name, fmt::format(format, std::forward<Args>(args)...)));
}

// Makes sure that file descriptors 0 to 2 are open, so that no socket or file takes their place and
// gets our output, and that writing to a closed pipe is an error instead of a silent death.
void secure_standard_streams();

}  // namespace protean

#pragma once

// Python's view of text, a sequence of code points, on UTF-8. A byte that is not UTF-8 is one
// character and stays as it is.

#include <cstddef>
#include <string>
#include <string_view>

namespace protean::jinja {

struct CodePoint {
  char32_t value;
  std::size_t bytes;
  bool valid;
};
// Precondition: at < text.size().
CodePoint decode(std::string_view text, std::size_t at);
void append_utf8(std::string& out, char32_t point);

std::size_t count_characters(std::string_view text);
// Returns where character `index` begins, or text.size() if there are fewer characters.
std::size_t character_offset(std::string_view text, std::size_t index);
// Calls visit(std::string_view character) from first to last.
template <class Visit>
void for_each_character(std::string_view text, Visit&& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = decode(text, at).bytes;
    visit(text.substr(at, bytes));
    at += bytes;
  }
}

bool is_space(char32_t point);  // str.isspace(), \s, and what strip() removes
bool is_printable(char32_t point);
bool is_alphabetic(char32_t point);
bool is_digit(char32_t point);
bool is_numeric(char32_t point);
bool is_word(char32_t point);  // \w
bool is_upper(char32_t point);
bool is_lower(char32_t point);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);  // str.capitalize()
std::string title_case(std::string_view text);  // str.title()

std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
// Removes any of the characters in `set` instead of white space.
std::string_view strip_left(std::string_view text, std::string_view set);
std::string_view strip_right(std::string_view text, std::string_view set);

}  // namespace protean::jinja

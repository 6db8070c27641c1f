#pragma once

#include <array>
#include <span>

namespace protean::jinja {

// Sorted, without overlap; ends included. The rows are in unicode_classes.cc
// and unicode_cases.cc, written by tests/jinja/unicode_tables.py.
struct CodeRange {
  char32_t first;
  char32_t last;
};

// Adding delta changes the case of every step-th character from first to last.
struct CaseRange {
  char32_t first;
  char32_t last;
  char32_t step;
  int delta;
};

// One character whose upper case is several; unused places are 0.
struct LongCase {
  char32_t from;
  std::array<char32_t, 3> to;
};

std::span<const CodeRange> unprintable_table();
std::span<const CodeRange> alphabetic_table();
std::span<const CodeRange> digit_table();
std::span<const CodeRange> numeric_table();
std::span<const CaseRange> upper_table();
std::span<const CaseRange> lower_table();
std::span<const LongCase> long_upper_table();

}  // namespace protean::jinja

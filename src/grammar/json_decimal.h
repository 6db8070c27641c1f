#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <vector>

#include "grammar/automaton.h"

namespace protean::grammar {

// A number by its decimal digits: exact, unlike a double.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // no leading zeros, except "0" itself
  std::string fraction;     // no trailing zeros

  // Returns the digits of a finite number.
  static Decimal of(const boost::json::value& number);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  Decimal negated() const;
};

int compare(const Decimal& a, const Decimal& b);  // negative, zero or positive, as strcmp()

struct DecimalBound {
  Decimal value;
  bool inclusive = true;
};

// A set of numbers. They are written without an exponent, and fractions with so few digits that
// different texts are different doubles.
struct DecimalRange {
  std::optional<DecimalBound> least;
  std::optional<DecimalBound> most;
  std::uint32_t multiple_of = 1;       // more than 1 only if fraction_digits is 0
  std::uint32_t fraction_digits = 15;  // 0: whole numbers only

  // Narrow the set.
  void at_least(DecimalBound bound);
  void at_most(DecimalBound bound);
  bool empty() const;  // false if that is not certain
  bool contains(const boost::json::value& number) const;
};

void emit_range(AutomatonBuilder& builder, StateId from, const DecimalRange& range, StateId to);

}  // namespace protean::grammar

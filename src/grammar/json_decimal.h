#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <vector>

#include "grammar/automaton.h"

namespace protean::grammar {

// A number as the digits that JSON text has: exact, unlike a double.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // without leading zeros but for "0" itself
  std::string fraction;     // without trailing zeros

  static Decimal of(const boost::json::value& number);  // finite
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  Decimal negated() const;
};

int compare(const Decimal& a, const Decimal& b);  // below, at or above zero

struct DecimalBound {
  Decimal value;
  bool inclusive = true;
};

// Which numbers, and how they may be written: never with an exponent; fractions have at most so
// many digits that two different texts are two different doubles.
struct DecimalRange {
  std::optional<DecimalBound> least;
  std::optional<DecimalBound> most;
  std::uint32_t multiple_of = 1;       // of whole numbers; more than 1 only with no fraction
  std::uint32_t fraction_digits = 15;  // 0: whole numbers only

  void at_least(DecimalBound bound);  // as well as what it says already
  void at_most(DecimalBound bound);
  bool empty() const;  // surely
  bool contains(const boost::json::value& number) const;
};

void emit_range(AutomatonBuilder& builder, StateId from, const DecimalRange& range, StateId to);

}  // namespace protean::grammar

#include "grammar/json_decimal.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "grammar/json_text.h"

namespace protean::grammar {

namespace {

constexpr std::size_t kExactDigits = 15;      // different texts of so many are different doubles
constexpr std::size_t kMostWholeDigits = 19;  // a 64-bit integer's

bool any_digit_from(const std::string& digits, std::size_t from) {
  return from < digits.size() && digits.find_first_not_of('0', from) != std::string::npos;
}

char digit_at(const std::string& digits, std::size_t at) {
  return at < digits.size() ? digits[at] : '0';
}

// Emits the unsigned numbers between two bounds, digit by digit. A bound is tight while the digits
// read so far equal its beginning; once they differ, it no longer matters.
class RangeEmitter {
 public:
  RangeEmitter(AutomatonBuilder& builder, const DecimalRange& range, StateId to)
      : builder_(&builder), range_(&range), to_(to) {}

  // A multiple has few enough digits to be one when read as a double.
  void emit(StateId from) {
    const std::size_t unbounded = range_->multiple_of > 1 ? kExactDigits : kMostWholeDigits;
    const std::size_t fewest = range_->least ? range_->least->value.whole.size() : 1;
    const std::size_t most =
        range_->most ? range_->most->value.whole.size() : std::max(unbounded, fewest);
    for (std::size_t digits = fewest; digits <= most; ++digits) {
      const bool tight_least = range_->least && digits == fewest;
      const bool tight_most = range_->most && digits == most;
      builder_->go(from, whole({digits, 0, tight_least, tight_most, 0}));
    }
  }

 private:
  struct At {
    std::size_t digits = 0;  // before the point, in all
    std::size_t read = 0;    // before the point, or after it in a fraction
    bool tight_least = false;
    bool tight_most = false;
    std::uint32_t rest = 0;  // the number read so far, modulo multiple_of
    auto key(bool fraction) const {
      return std::tuple(fraction, digits, read, tight_least, tight_most, rest);
    }
  };
  using Key = std::tuple<bool, std::size_t, std::size_t, bool, bool, std::uint32_t>;

  // Returns the state, and true if it is new and needs its edges.
  std::pair<StateId, bool> find(const At& at, bool fraction) {
    const auto [it, fresh] = known_.try_emplace(at.key(fraction), 0);
    if (fresh) {
      it->second = builder_->state();
    }
    return {it->second, fresh && !builder_->exhausted()};
  }

  // Returns an equivalent place that more numbers share: if no bound is tight and there is no
  // fraction, only the number of digits left to read matters.
  At simplest(At at) const {
    if (!at.tight_least && !at.tight_most && range_->fraction_digits == 0 && at.read > 0) {
      return {at.digits - at.read + 1, 1, false, false, at.rest};
    }
    return at;
  }

  StateId whole(At at) {
    at = simplest(at);
    const auto [state, fresh] = find(at, false);
    if (!fresh) {
      return state;
    }
    if (at.read == at.digits) {
      end(state, at, 0);
      if (budget(at.digits) > 0) {
        builder_->bytes(state, '.', '.',
                        fraction({at.digits, 0, at.tight_least, at.tight_most, at.rest}));
      }
      return state;
    }
    for (char digit = at.read == 0 && at.digits > 1 ? '1' : '0'; digit <= '9'; ++digit) {
      At next = at;
      ++next.read;
      next.rest = (at.rest * 10 + static_cast<std::uint32_t>(digit - '0')) % range_->multiple_of;
      if (follow(next, at, digit, false)) {
        const auto byte = static_cast<std::uint8_t>(digit);
        builder_->bytes(state, byte, byte, whole(next));
      }
    }
    return state;
  }

  StateId fraction(const At& at) {
    const auto [state, fresh] = find(at, true);
    if (!fresh) {
      return state;
    }
    if (at.read > 0) {
      end(state, at, at.read);
    }
    for (char digit = '0'; digit <= '9' && at.read < budget(at.digits); ++digit) {
      At next = at;
      ++next.read;
      if (follow(next, at, digit, true)) {
        const auto byte = static_cast<std::uint8_t>(digit);
        builder_->bytes(state, byte, byte, fraction(next));
      }
    }
    return state;
  }

  // Returns how many digits a fraction may have: as many as keep doubles apart or the bounds have.
  std::size_t budget(std::size_t whole_digits) const {
    std::size_t digits = whole_digits < kExactDigits ? kExactDigits - whole_digits : 0;
    for (const auto* bound : {&range_->least, &range_->most}) {
      digits = std::max(digits, *bound ? (*bound)->value.fraction.size() : 0);
    }
    return std::min<std::size_t>(digits, range_->fraction_digits);
  }

  bool follow(At& next, const At& at, char digit, bool fraction) const {
    if (at.tight_least) {
      const Decimal& least = range_->least->value;
      const char bound = digit_at(fraction ? least.fraction : least.whole, at.read);
      if (digit < bound) {
        return false;
      }
      next.tight_least = digit == bound;
    }
    if (at.tight_most) {
      const Decimal& most = range_->most->value;
      const char bound = digit_at(fraction ? most.fraction : most.whole, at.read);
      if (digit > bound) {
        return false;
      }
      next.tight_most = digit == bound;
    }
    return true;
  }

  void end(StateId state, const At& at, std::size_t fraction_read) {
    if (at.rest != 0) {
      return;
    }
    if (at.tight_least && (any_digit_from(range_->least->value.fraction, fraction_read) ||
                           !range_->least->inclusive)) {
      return;
    }
    if (at.tight_most && !any_digit_from(range_->most->value.fraction, fraction_read) &&
        !range_->most->inclusive) {
      return;
    }
    builder_->go(state, to_);
  }

  AutomatonBuilder* builder_;
  const DecimalRange* range_;
  StateId to_;
  std::map<Key, StateId> known_;
};

int compare_unsigned(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) {
    return a.whole.size() < b.whole.size() ? -1 : 1;
  }
  const int whole = a.whole.compare(b.whole);
  return whole != 0 ? whole : a.fraction.compare(b.fraction);
}

std::optional<DecimalBound> negated(const std::optional<DecimalBound>& bound) {
  return bound ? std::optional(DecimalBound{bound->value.negated(), bound->inclusive})
               : std::nullopt;
}

// Returns the part of the range above zero, and zero itself if `with_zero`.
std::optional<DecimalRange> unsigned_part(DecimalRange range, bool with_zero) {
  const DecimalBound zero{Decimal{}, with_zero};
  range.at_least(zero);
  return range.empty() ? std::nullopt : std::optional(range);
}

}  // namespace

Decimal Decimal::of(const boost::json::value& number) {
  const std::string text = json_number_text(number);
  Decimal decimal;
  decimal.negative = text.starts_with('-');
  const std::size_t exponent_at = std::min(text.find('e'), text.size());
  std::string digits =
      text.substr(decimal.negative ? 1 : 0, exponent_at - (decimal.negative ? 1 : 0));
  int exponent = 0;
  if (exponent_at < text.size()) {
    const std::size_t begin = exponent_at + (text[exponent_at + 1] == '+' ? 2 : 1);
    std::from_chars(text.data() + begin, text.data() + text.size(), exponent);
  }
  const std::size_t point = std::min(digits.find('.'), digits.size());
  auto place = static_cast<int>(point) + exponent;  // digits before the point
  digits.erase(std::min(point, digits.size()), 1);
  if (place < 0) {
    std::string padded(static_cast<std::size_t>(-place), '0');
    padded += digits;
    digits = std::move(padded);
    place = 0;
  }
  if (static_cast<std::size_t>(place) > digits.size()) {
    digits.append(static_cast<std::size_t>(place) - digits.size(), '0');
  }
  decimal.whole = digits.substr(0, static_cast<std::size_t>(place));
  decimal.fraction = digits.substr(static_cast<std::size_t>(place));
  decimal.whole.erase(0, decimal.whole.find_first_not_of('0'));
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.whole.empty()) {
    decimal.whole.push_back('0');
  }
  decimal.negative = decimal.negative && !decimal.is_zero();
  return decimal;
}

Decimal Decimal::negated() const {
  Decimal other = *this;
  other.negative = !negative && !is_zero();
  return other;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) {
    return a.negative ? -1 : 1;
  }
  return a.negative ? compare_unsigned(b, a) : compare_unsigned(a, b);
}

void DecimalRange::at_least(DecimalBound bound) {
  const int order = least ? compare(bound.value, least->value) : 1;
  if (order > 0 || (order == 0 && !bound.inclusive)) {
    least = std::move(bound);
  }
}

void DecimalRange::at_most(DecimalBound bound) {
  const int order = most ? compare(bound.value, most->value) : -1;
  if (order < 0 || (order == 0 && !bound.inclusive)) {
    most = std::move(bound);
  }
}

bool DecimalRange::empty() const {
  if (!least || !most) {
    return false;
  }
  const int order = compare(least->value, most->value);
  return order > 0 || (order == 0 && !(least->inclusive && most->inclusive));
}

bool DecimalRange::contains(const boost::json::value& number) const {
  const Decimal value = Decimal::of(number);
  DecimalRange point = *this;
  point.at_least({value, true});
  point.at_most({value, true});
  const bool limited = fraction_digits < DecimalRange().fraction_digits;
  if (point.empty() || (limited && value.fraction.size() > fraction_digits)) {
    return false;
  }
  std::uint64_t rest = 0;
  for (const char digit : value.whole) {
    rest = (rest * 10 + static_cast<std::uint64_t>(digit - '0')) % multiple_of;
  }
  return rest == 0;
}

void emit_range(AutomatonBuilder& builder, StateId from, const DecimalRange& range, StateId to) {
  if (const auto above = unsigned_part(range, true); above) {
    RangeEmitter(builder, *above, to).emit(from);
  }
  DecimalRange mirrored = range;
  mirrored.least = negated(range.most);
  mirrored.most = negated(range.least);
  if (const auto below = unsigned_part(mirrored, false); below) {
    const StateId minus = builder.state();
    builder.bytes(from, '-', '-', minus);
    RangeEmitter(builder, *below, to).emit(minus);
  }
}

}  // namespace protean::grammar

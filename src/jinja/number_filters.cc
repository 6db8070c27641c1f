#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

constexpr double kInt64Range = 9223372036854775808.0;

std::int64_t truncated(double number) {
  if (std::isnan(number) || std::isinf(number)) {
    fail("cannot convert float {} to integer", std::isnan(number) ? "NaN" : "infinity");
  }
  if (!(std::fabs(number) < kInt64Range)) {
    refuse("an integer beyond 64 bits is not supported");
  }
  return static_cast<std::int64_t>(number);
}

// Removes white space around a number and single underscores between its digits, as Python does.
// Returns nothing if an underscore is elsewhere.
std::optional<std::string> plain_digits(std::string_view text) {
  text = strip_right(strip_left(text));
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto digit = [&](std::size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
  }
  return out;
}

std::optional<double> parse_float(std::string_view text) {
  std::optional<std::string> digits = plain_digits(text);
  if (!digits || digits->empty()) return std::nullopt;
  const char* first = digits->data();
  if (*first == '+') ++first;
  const bool negative = *first == '-';
  const std::string_view magnitude(first + (negative ? 1 : 0));
  const bool starts_well = !magnitude.empty() && magnitude[0] != '+' && magnitude[0] != '-' &&
                           magnitude.find('(') == magnitude.npos;
  if (!starts_well || (first != digits->data() && negative)) return std::nullopt;
  double number = 0;
  const char* end = digits->data() + digits->size();
  const auto result = std::from_chars(first, end, number);
  if (result.ec == std::errc::result_out_of_range) number = std::strtod(first, nullptr);
  if (result.ec == std::errc::invalid_argument || result.ptr != end) return std::nullopt;
  return number;
}

// int(text, base). Base 0 follows the prefix.
std::optional<std::int64_t> parse_int(std::string_view text, std::int64_t base) {
  std::optional<std::string> digits = plain_digits(text);
  if (!digits) return std::nullopt;
  std::string_view rest = *digits;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  const char letter = rest.size() > 1 && rest[0] == '0' ? static_cast<char>(rest[1] | 0x20) : ' ';
  const int prefixed = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (prefixed != 0 && (base == prefixed || base == 0)) {
    rest.remove_prefix(2);
    base = prefixed;
  }
  if (base == 0) base = 10;
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  std::int64_t number = 0;
  const std::string signed_text = fmt::format("{}{}", negative ? "-" : "", rest);
  const char* end = signed_text.data() + signed_text.size();
  const auto result = std::from_chars(signed_text.data(), end, number, static_cast<int>(base));
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return std::nullopt;
  if (result.ec != std::errc()) {
    refuse("an integer beyond 64 bits is not supported");
  }
  return number;
}

Value to_int(Runtime& runtime, const Value& self, Call& call) {
  const Value otherwise = call.optional(0, "default", Value::integer(0));
  const std::int64_t base = to_index(call.optional(1, "base", Value::integer(10)), "base");
  if (self.is_undefined()) fail_undefined(self);
  if (self.is_integer()) return Value::integer(self.as_integer());
  if (self.is_number() && std::isnan(self.as_number())) return otherwise;
  if (self.is_number()) return Value::integer(truncated(self.as_number()));
  if (!self.is_string() || base < 0 || base == 1 || base > 36) return otherwise;
  runtime.read(self.as_text());
  if (const auto number = parse_int(self.as_text(), base)) return Value::integer(*number);
  const auto number = parse_float(self.as_text());
  return number && !std::isnan(*number) ? Value::integer(truncated(*number)) : otherwise;
}

Value to_float(Runtime& runtime, const Value& self, Call& call) {
  const Value otherwise = call.optional(0, "default", Value::number(0));
  if (self.is_undefined()) fail_undefined(self);
  if (self.is_number()) return Value::number(self.as_number());
  if (!self.is_string()) return otherwise;
  runtime.read(self.as_text());
  const auto number = parse_float(self.as_text());
  return number ? Value::number(*number) : otherwise;
}

// Returns the nearest multiple of 10^-digits. As in Python, the exact binary value decides, and
// ties go to even.
double round_float(double number, std::int64_t digits) {
  if (!std::isfinite(number) || digits > 323) return number;
  if (digits < -308) return std::copysign(0.0, number);
  if (digits < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(number / unit) * unit;
  }
  return std::strtod(fmt::format("{:.{}f}", number, digits).c_str(), nullptr);
}

std::int64_t round_integer(std::int64_t number, std::int64_t digits) {
  if (digits >= 0) return number;
  if (digits < -18) return 0;
  std::int64_t unit = 1;
  for (; digits < 0; ++digits) unit *= 10;
  const std::int64_t low = number - (number % unit + unit) % unit;
  const std::int64_t above = number - low;
  const bool up = above > unit - above || (above == unit - above && (low / unit) % 2 != 0);
  return up ? checked_add(low, unit) : low;
}

Value round(Runtime& runtime, const Value& self, Call& call) {
  const Value precision = call.optional(0, "precision", Value::integer(0));
  const Value method = call.optional(1, "method", Value::text("common"));
  const std::string_view how = text_of(runtime, method);
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is_number()) fail("round needs a number, not {}", type_name(self));
  const std::int64_t digits = to_index(precision, "precision must be an integer");
  if (how == "common") {
    if (self.is_integer()) return Value::integer(round_integer(self.as_integer(), digits));
    return Value::number(round_float(self.as_number(), digits));
  }
  if (how != "ceil" && how != "floor") fail("method must be common, ceil or floor");
  const Value unit = arithmetic(runtime, Operator::kPower, Value::integer(10), precision);
  const Value scaled = arithmetic(runtime, Operator::kMultiply, self, unit);
  const double whole =
      how == "ceil" ? std::ceil(scaled.as_number()) : std::floor(scaled.as_number());
  return arithmetic(runtime, Operator::kDivide, Value::integer(truncated(whole)), unit);
}

Value absolute(Runtime& runtime, const Value& self, Call&) {
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is_number()) fail("bad operand type for abs(): '{}'", type_name(self));
  if (!self.is_integer()) return Value::number(std::fabs(self.as_number()));
  return unary(runtime, self.as_integer() < 0 ? Operator::kNegate : Operator::kPlus, self);
}

constexpr std::array<NamedBuiltin, 4> kNumberFilters = {
    {{"abs", absolute}, {"float", to_float}, {"int", to_int}, {"round", round}}};

}  // namespace

std::span<const NamedBuiltin> number_filters() {
  return kNumberFilters;
}

}  // namespace protean::jinja

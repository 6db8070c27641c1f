#include "grammar/json_text.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>

#include "grammar/code_points.h"
#include "grammar/regex_parser.h"

namespace protean::grammar {

std::string json_number_text(const boost::json::value& number) {
  if (number.is_int64()) {
    return fmt::format("{}", number.get_int64());
  }
  if (number.is_uint64()) {
    return fmt::format("{}", number.get_uint64());
  }
  constexpr double kWrittenOut = 1e21;  // JSON.stringify uses an exponent from here on
  const double value = number.get_double();
  if (std::trunc(value) == value && std::abs(value) < kWrittenOut) {
    return fmt::format("{:.0f}", value == 0 ? 0.0 : value);
  }
  return fmt::format("{}", value);
}

namespace {

// Returns what `pattern` matches of the white space that JSON allows.
Result<Language> whitespace_matching(const std::string& pattern) {
  const Result<Language> texts = parse_regex(pattern, RegexDialect::kPcre, RegexMatch::kWhole);
  if (!texts) {
    return make_error(texts.error().code, "the white space pattern \"{}\": {}", pattern,
                      texts.error().message);
  }
  static const CharacterClass kWhitespace({{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}});
  const Language any({{.edges = {{kWhitespace, 0}}, .final = true}});
  Result<Language> kept = texts->intersect(any);
  if (kept && kept->empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the white space pattern \"{}\" matches no text of spaces, tabs and line "
                      "ends; use one such as \"[ \\n]?\"",
                      pattern);
  }
  return kept;
}

}  // namespace

Result<JsonGaps> JsonGaps::parse(const JsonWhitespace& whitespace) {
  Result<Language> after_separator = whitespace_matching(whitespace.after_separator);
  Result<Language> elsewhere = whitespace_matching(whitespace.elsewhere);
  if (!after_separator || !elsewhere) {
    return after_separator ? elsewhere.error() : after_separator.error();
  }
  return JsonGaps{*std::move(after_separator), *std::move(elsewhere)};
}

JsonText::JsonText(AutomatonBuilder& builder, JsonGaps gaps)
    : builder_(&builder), gaps_(std::move(gaps)) {}

void JsonText::whitespace(const Language& texts, std::optional<StateId>& called, StateId from,
                          StateId to) {
  constexpr std::size_t kMostInline = 8;  // masks take longer over a call than over a few states
  if (texts.states().size() <= kMostInline) {
    texts.emit(*builder_, from, Spelling::kPlain, to);
    return;
  }
  if (!called) {
    called = builder_->state();
    const StateId end = builder_->state();
    builder_->final(end);
    texts.emit(*builder_, *called, Spelling::kPlain, end);
  }
  builder_->call(from, *called, to);
}

void JsonText::gap(StateId from, StateId to) {
  whitespace(gaps_.elsewhere, elsewhere_, from, to);
}

void JsonText::separator(StateId from, char character, StateId to) {
  const StateId before = builder_->state();
  const StateId after = builder_->state();
  gap(from, before);
  const auto byte = static_cast<std::uint8_t>(character);
  builder_->bytes(before, byte, byte, after);
  whitespace(gaps_.after_separator, after_separator_, after, to);
}

void JsonText::string_body(StateId from, std::uint32_t least, std::uint32_t most, StateId to) {
  const std::uint32_t loop = builder_->loop(least, most);
  const StateId again = builder_->state();
  const StateId character = builder_->state();
  const StateId close = builder_->state();
  builder_->bytes(from, '"', '"', again);
  builder_->count(again, loop, character);
  builder_->begins_string_character(character, loop);
  emit_any_json_character(*builder_, character, again);
  builder_->leave(again, loop, close);
  builder_->bytes(close, '"', '"', to);
}

StateId JsonText::called_string() {
  if (!string_) {
    string_ = builder_->state();
    const StateId end = builder_->state();
    builder_->final(end);
    string_body(*string_, 0, kNoLimit, end);
  }
  return *string_;
}

void JsonText::string(StateId from, std::uint32_t least, std::uint32_t most, StateId to) {
  if (least == 0 && most == kNoLimit) {
    builder_->call(from, called_string(), to);
  } else {
    const StateId begin = builder_->state();
    const StateId end = builder_->state();
    builder_->final(end);
    string_body(begin, least, most, end);
    builder_->call(from, begin, to);
  }
}

void JsonText::digits(StateId from, int most, StateId to) {
  for (int i = 0; i < most; ++i) {
    const StateId next = builder_->state();
    builder_->bytes(from, '0', '9', next);
    builder_->go(next, to);
    from = next;
  }
}

void JsonText::integer(StateId from, StateId to) {
  constexpr int kMostDigits = 19;  // a 64-bit integer's
  const StateId unsigned_part = builder_->state();
  const StateId first = builder_->state();
  builder_->go(from, unsigned_part);
  builder_->bytes(from, '-', '-', unsigned_part);
  builder_->bytes(unsigned_part, '0', '0', to);
  builder_->bytes(unsigned_part, '1', '9', first);
  builder_->go(first, to);
  digits(first, kMostDigits - 1, to);
}

StateId JsonText::called_number() {
  if (number_) {
    return *number_;
  }
  number_ = builder_->state();
  const StateId whole = builder_->state();
  const StateId fraction = builder_->state();
  const StateId mantissa = builder_->state();
  const StateId sign = builder_->state();
  const StateId exponent = builder_->state();
  const StateId end = builder_->state();
  builder_->final(end);
  integer(*number_, whole);
  builder_->go(whole, mantissa);
  builder_->bytes(whole, '.', '.', fraction);
  digits(fraction, 16, mantissa);
  builder_->go(mantissa, end);
  builder_->bytes(mantissa, 'e', 'e', sign);
  builder_->bytes(mantissa, 'E', 'E', sign);
  builder_->go(sign, exponent);
  builder_->bytes(sign, '+', '+', exponent);
  builder_->bytes(sign, '-', '-', exponent);
  digits(exponent, 2, end);
  const StateId hundred = builder_->state();
  const StateId two_hundred = builder_->state();
  const StateId last = builder_->state();
  builder_->bytes(exponent, '1', '1', hundred);
  builder_->bytes(hundred, '0', '9', last);
  builder_->bytes(exponent, '2', '2', two_hundred);
  builder_->bytes(two_hundred, '0', '8', last);
  builder_->bytes(last, '0', '9', end);
  return *number_;
}

void JsonText::number(StateId from, StateId to) {
  builder_->call(from, called_number(), to);
}

void JsonText::any_object(StateId from, StateId to) {
  const StateId inside = builder_->state();
  const StateId key = builder_->state();
  const StateId after_key = builder_->state();
  const StateId value = builder_->state();
  const StateId after_value = builder_->state();
  const StateId close = builder_->state();
  const StateId open = builder_->state();
  builder_->bytes(from, '{', '{', open);
  gap(open, inside);
  builder_->go(inside, close);
  builder_->open(inside, key);
  string(key, 0, kNoLimit, after_key);
  colon(after_key, value);
  builder_->call(value, called_value(), after_value);
  comma(after_value, key);
  gap(after_value, close);
  builder_->bytes(close, '}', '}', to);
}

void JsonText::any_array(StateId from, StateId to) {
  const StateId open = builder_->state();
  const StateId inside = builder_->state();
  const StateId item = builder_->state();
  const StateId after_item = builder_->state();
  const StateId close = builder_->state();
  builder_->bytes(from, '[', '[', open);
  gap(open, inside);
  builder_->go(inside, close);
  builder_->open(inside, item);
  builder_->call(item, called_value(), after_item);
  comma(after_item, item);
  gap(after_item, close);
  builder_->bytes(close, ']', ']', to);
}

StateId JsonText::called_value() {
  if (value_) {
    return *value_;
  }
  value_ = builder_->state();
  const StateId end = builder_->state();
  builder_->final(end);
  builder_->literal(*value_, "null", end);
  builder_->literal(*value_, "true", end);
  builder_->literal(*value_, "false", end);
  number(*value_, end);
  string(*value_, 0, kNoLimit, end);
  any_object(*value_, end);
  any_array(*value_, end);
  return *value_;
}

void JsonText::any_value(StateId from, StateId to) {
  builder_->call(from, called_value(), to);
}

void JsonText::literal(StateId from, const boost::json::value& value, StateId to) {
  if (value.is_string()) {
    builder_->literal(from, json_quoted({value.get_string().data(), value.get_string().size()}),
                      to);
  } else if (value.is_number()) {
    builder_->literal(from, json_number_text(value), to);
  } else if (value.is_bool()) {
    builder_->literal(from, value.get_bool() ? "true" : "false", to);
  } else if (value.is_null()) {
    builder_->literal(from, "null", to);
  } else {
    const bool object = value.is_object();
    StateId at = builder_->state();
    const StateId open = builder_->state();
    builder_->bytes(from, object ? '{' : '[', object ? '{' : '[', open);
    gap(open, at);
    bool first = true;
    const auto element = [&](const boost::json::value& item, const std::string& key) {
      if (!std::exchange(first, false)) {
        const StateId next = builder_->state();
        comma(at, next);
        at = next;
      }
      if (!key.empty()) {
        const StateId after_key = builder_->state();
        const StateId begin = builder_->state();
        builder_->literal(at, key, after_key);
        colon(after_key, begin);
        at = begin;
      }
      const StateId after = builder_->state();
      literal(at, item, after);
      at = after;
    };
    if (object) {
      for (const auto& member : value.get_object()) {
        element(member.value(), json_quoted({member.key().data(), member.key().size()}));
      }
    } else {
      for (const boost::json::value& item : value.get_array()) {
        element(item, "");
      }
    }
    const StateId close = builder_->state();
    gap(at, close);
    builder_->bytes(close, object ? '}' : ']', object ? '}' : ']', to);
  }
}

}  // namespace protean::grammar

#include <algorithm>
#include <array>
#include <cstring>

#include "jinja/methods.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_format.h"
#include "jinja/text_search.h"
#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

constexpr std::string_view kIndexWhat = "a text method needs an integer";

std::string_view text_argument(const Value& v) {
  if (!v.is_string()) fail("a text method needs str, not {}", type_name(v));
  return v.as_text();
}

// A backward search may compare the whole part at every place.
void pay_for_search(Runtime& runtime, std::string_view text, std::string_view part, bool backward) {
  runtime.spend_steps(text.size() / 16 + (backward ? text.size() * part.size() / 1024 : 0));
}

// Returns `part` as it is added to `self`: escaped if only `self` is markup.
Value text_for(Runtime& runtime, const Value& self, const Value& part) {
  if (!self.is_markup() || part.is_markup()) {
    text_argument(part);
    return part;
  }
  std::string out;
  write_escaped(text_of(runtime, part), out);
  return runtime.text(std::move(out));
}

template <std::string (*kChange)(std::string_view)>
Value change_case(Runtime& runtime, const Value& self, Call&) {
  runtime.spend_steps(self.as_text().size() / 4);
  return runtime.text_from(self, kChange(self.as_text()));
}

template <bool kLeft, bool kRight>
Value strip(Runtime& runtime, const Value& self, Call& call) {
  const Value set = call.optional(0, "", Value::none());
  runtime.read(self.as_text());
  return self.part(strip_text(runtime, self.as_text(), set, {kLeft, kRight}));
}

// str.startswith(prefix or tuple of prefixes, start, end).
template <bool kStart>
Value has_affix(Runtime& runtime, const Value& self, Call& call) {
  const Value wanted = call.required(0, "");
  SliceBounds part{call.optional(1, "", Value::none()), call.optional(2, "", Value::none()),
                   Value::none()};
  Value text = self;
  if (!part.start.is_none() || !part.stop.is_none()) text = slice(runtime, self, part);
  const auto holds = [&](const Value& affix) {
    const std::string_view a = text_argument(affix);
    return kStart ? text.as_text().starts_with(a) : text.as_text().ends_with(a);
  };
  if (!wanted.is(Type::kSequence)) return Value::boolean(holds(wanted));
  const auto& affixes = wanted.as_sequence().items;
  return Value::boolean(std::any_of(affixes.begin(), affixes.end(), holds));
}

template <bool kStart>
Value remove_affix(Runtime&, const Value& self, Call& call) {
  std::string_view text = self.as_text();
  const std::string_view affix = text_argument(call.required(0, ""));
  if (kStart && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!kStart && text.ends_with(affix)) text.remove_suffix(affix.size());
  return self.part(text);
}

template <bool kFromRight>
Value split(Runtime& runtime, const Value& self, Call& call) {
  const Value separator = call.optional(0, "sep", Value::none());
  std::int64_t most = to_index(call.optional(1, "maxsplit", Value::integer(-1)), kIndexWhat);
  if (most < 0) most = INT64_MAX;
  runtime.read(self.as_text());
  std::vector<std::string_view> parts;
  if (separator.is_none()) {
    parts =
        kFromRight ? split_space_right(self.as_text(), most) : split_space(self.as_text(), most);
  } else {
    const std::string_view at = text_argument(separator);
    if (at.empty()) fail("empty separator");
    pay_for_search(runtime, self.as_text(), at, kFromRight);
    parts = kFromRight ? split_right(self.as_text(), at, most) : split_at(self.as_text(), at, most);
  }
  std::vector<Value> values;
  for (const std::string_view part : parts) values.push_back(self.part(part));
  return runtime.list(std::move(values));
}

Value splitlines(Runtime& runtime, const Value& self, Call& call) {
  const bool keep = truthy(call.optional(0, "keepends", Value::boolean(false)));
  runtime.read(self.as_text());
  std::vector<Value> lines;
  for (const auto line : split_lines(self.as_text(), keep)) lines.push_back(self.part(line));
  return runtime.list(std::move(lines));
}

template <bool kFromRight>
Value partition(Runtime& runtime, const Value& self, Call& call) {
  const std::string_view text = self.as_text(), at = text_argument(call.required(0, ""));
  if (at.empty()) fail("empty separator");
  pay_for_search(runtime, text, at, kFromRight);
  const std::size_t found = kFromRight ? find_last(text, at) : find_text(text, at, 0);
  if (found == text.npos) {
    const Value empty = self.part("");
    return kFromRight ? runtime.tuple({empty, empty, self}) : runtime.tuple({self, empty, empty});
  }
  return runtime.tuple({self.part(text.substr(0, found)), self.part(text.substr(found, at.size())),
                        self.part(text.substr(found + at.size()))});
}

// Returns the index of the first argument in characters, or -1.
template <bool kFromRight>
std::int64_t position(Runtime& runtime, const Value& self, Call& call) {
  const std::string_view part = text_argument(call.required(0, ""));
  const Value start = call.optional(1, "", Value::integer(0));
  const std::string_view text = self.as_text();
  pay_for_search(runtime, text, part, kFromRight);
  std::int64_t from = to_index(start, kIndexWhat);
  const auto size = static_cast<std::int64_t>(count_characters(text));
  if (from < 0) from = std::max<std::int64_t>(0, from + size);
  if (from > size) return -1;
  const std::size_t skipped = character_offset(text, static_cast<std::size_t>(from));
  const std::string_view tail = text.substr(skipped);
  const std::size_t found = kFromRight ? find_last(tail, part) : find_text(tail, part, 0);
  if (found == text.npos) return -1;
  return from + static_cast<std::int64_t>(count_characters(tail.substr(0, found)));
}

template <bool kFromRight>
Value find(Runtime& runtime, const Value& self, Call& call) {
  return Value::integer(position<kFromRight>(runtime, self, call));
}

template <bool kFromRight>
Value index(Runtime& runtime, const Value& self, Call& call) {
  const std::int64_t at = position<kFromRight>(runtime, self, call);
  if (at < 0) fail("substring not found");
  return Value::integer(at);
}

Value count(Runtime& runtime, const Value& self, Call& call) {
  const std::string_view text = self.as_text(), part = text_argument(call.required(0, ""));
  runtime.read(text);
  if (part.empty()) return Value::integer(static_cast<std::int64_t>(count_characters(text)) + 1);
  std::int64_t found = 0;
  for (std::size_t at = find_text(text, part, 0); at != text.npos;
       at = find_text(text, part, at + part.size())) {
    ++found;
  }
  return Value::integer(found);
}

Value replace(Runtime& runtime, const Value& self, Call& call) {
  const std::string_view from = text_for(runtime, self, call.required(0, "")).as_text();
  const Value to = text_for(runtime, self, call.required(1, ""));
  const std::int64_t most = to_index(call.optional(2, "", Value::integer(-1)), kIndexWhat);
  return runtime.text(replace_text(runtime, self, {from, to, most}), self.is_markup());
}

Value join(Runtime& runtime, const Value& self, Call& call) {
  MarkedText out;
  bool first = true;
  for (const Value& item : elements(runtime, call.required(0, ""))) {
    if (!first) runtime.append(out, self);
    first = false;
    runtime.append(out, text_for(runtime, self, item));
    runtime.spend_steps(1 + (item.as_text().size() + self.as_text().size()) / 64);
    runtime.check_output(out.text.size());
  }
  return runtime.text(std::move(out), self.is_markup());
}

enum class Side { kLeft, kRight, kBoth };

template <Side kText>
Value justify(Runtime& runtime, const Value& self, Call& call) {
  const std::int64_t width = to_index(call.required(0, ""), kIndexWhat);
  const std::string_view fill = text_argument(call.optional(1, "", Value::text(" ")));
  if (count_characters(fill) != 1) fail("the fill character must be exactly one character long");
  const double left_share = kText == Side::kLeft ? 0 : kText == Side::kRight ? 1 : 0.5;
  return pad(runtime, self, fill, {width, left_share});
}

Value zfill(Runtime& runtime, const Value& self, Call& call) {
  const std::int64_t width = to_index(call.required(0, ""), kIndexWhat);
  std::string_view text = self.as_text();
  const bool has_sign = text.starts_with('+') || text.starts_with('-');
  const std::string_view sign = text.substr(0, has_sign ? 1 : 0);
  text.remove_prefix(sign.size());
  const Value padded =
      pad(runtime, Value::text(text), "0", {width - static_cast<std::int64_t>(sign.size()), 1});
  return runtime.text(std::string(sign) += padded.as_text(), self.is_markup());
}

template <bool (*kHolds)(char32_t)>
Value all_are(Runtime& runtime, const Value& self, Call&) {
  runtime.read(self.as_text());
  bool all = !self.as_text().empty();
  for_each_character(self.as_text(), [&](std::string_view character) {
    const CodePoint c = decode(character, 0);
    all = all && c.valid && kHolds(c.value);
  });
  return Value::boolean(all);
}

bool letter_or_number(char32_t c) {
  return c != '_' && is_word(c);
}

Value is_ascii(Runtime& runtime, const Value& self, Call&) {
  runtime.read(self.as_text());
  return Value::boolean(std::all_of(self.as_text().begin(), self.as_text().end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
}

template <bool kUpper>
Value is_case(Runtime& runtime, const Value& self, Call&) {
  runtime.read(self.as_text());
  return Value::boolean(has_only_case(self.as_text(), kUpper));
}

constexpr std::array<NamedBuiltin, 36> kTextMethods = {{
    {"capitalize", change_case<capitalize>},
    {"center", justify<Side::kBoth>},
    {"count", count},
    {"endswith", has_affix<false>},
    {"find", find<false>},
    {"format", brace_format},
    {"index", index<false>},
    {"isalnum", all_are<letter_or_number>},
    {"isalpha", all_are<is_alphabetic>},
    {"isascii", is_ascii},
    {"isdigit", all_are<is_digit>},
    {"islower", is_case<false>},
    {"isnumeric", all_are<is_numeric>},
    {"isspace", all_are<is_space>},
    {"isupper", is_case<true>},
    {"join", join},
    {"ljust", justify<Side::kLeft>},
    {"lower", change_case<to_lower>},
    {"lstrip", strip<true, false>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace},
    {"rfind", find<true>},
    {"rindex", index<true>},
    {"rjust", justify<Side::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"splitlines", splitlines},
    {"startswith", has_affix<true>},
    {"strip", strip<true, true>},
    {"title", change_case<title_case>},
    {"upper", change_case<to_upper>},
    {"zfill", zfill},
}};

}  // namespace

std::span<const NamedBuiltin> text_methods() {
  return kTextMethods;
}

}  // namespace protean::jinja

#include <array>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_format.h"
#include "jinja/text_search.h"
#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

template <std::string (*kChange)(std::string_view)>
Value change_case(Runtime& runtime, const Value& self, Call&) {
  const std::string_view text = text_of(runtime, self);
  runtime.spend_steps(text.size() / 4);
  return runtime.text_from(self, kChange(text));
}

Value trim(Runtime& runtime, const Value& self, Call& call) {
  const Value set = call.optional(0, "chars", Value::none());
  const Value text = to_string(runtime, self);
  runtime.read(text.as_text());
  return text.part(strip_text(runtime, text.as_text(), set, {true, true}));
}

Value replace(Runtime& runtime, const Value& self, Call& call) {
  const std::string_view from = text_of(runtime, call.required(0, "old"));
  const Value to = to_string(runtime, call.required(1, "new"));
  const Value count = call.optional(2, "count", Value::none());
  const std::int64_t most = count.is_none() ? -1 : to_index(count, "count must be an integer");
  return runtime.text(replace_text(runtime, to_string(runtime, self), {from, to, most}));
}

Value title(Runtime& runtime, const Value& self, Call&) {
  const std::string_view text = text_of(runtime, self);
  runtime.spend_steps(text.size() / 4);
  std::string out, word;
  const auto finish_word = [&] {
    if (word.empty()) return;
    const std::size_t first = decode(word, 0).bytes;
    out += to_upper(word.substr(0, first)) + to_lower(word.substr(first));
    word.clear();
  };
  for_each_character(text, [&](std::string_view character) {
    const CodePoint c = decode(character, 0);
    const bool between = c.value == '-' || c.value == '(' || c.value == '{' || c.value == '[' ||
                         c.value == '<' || (c.valid && is_space(c.value));
    if (!between) {
      word += character;
      return;
    }
    finish_word();
    out += character;
  });
  finish_word();
  return runtime.text_from(to_string(runtime, self), std::move(out));
}

Value indent(Runtime& runtime, const Value& self, Call& call) {
  const Value width = call.optional(0, "width", Value::integer(4));
  const bool first = truthy(call.optional(1, "first", Value::boolean(false)));
  const bool blank = truthy(call.optional(2, "blank", Value::boolean(false)));
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is_string()) fail("indent needs text, not {}", type_name(self));
  const Value space =
      width.is_string() ? width : arithmetic(runtime, Operator::kMultiply, Value::text(" "), width);
  runtime.read(self.as_text());
  std::vector<std::string_view> lines = split_lines(self.as_text(), false);
  const bool ends_line = lines.empty() || lines.back().end() != self.as_text().end();
  if (ends_line && !self.as_text().ends_with('\r')) lines.emplace_back();  // as in jinja2
  MarkedText out;
  bool starts = true;
  for (const std::string_view line : lines) {
    if (!starts) out.text += '\n';
    if (starts ? first : blank || !line.empty()) out.text += space.as_text();
    runtime.append(out, self.part(line));
    starts = false;
    runtime.spend_steps(1 + space.as_text().size() / 64);
    runtime.check_output(out.text.size());
  }
  return runtime.text(std::move(out), self.is_markup());
}

Value join(Runtime& runtime, const Value& self, Call& call) {
  const Value separator = to_string(runtime, call.optional(0, "d", Value::text("")));
  const Value path = call.optional(1, "attribute", Value::none());
  MarkedText out;
  bool first = true;
  for (const Value& item : elements(runtime, self)) {
    if (!first) runtime.append(out, separator);
    first = false;
    runtime.spend_steps(1 + separator.as_text().size() / 64);
    write_text(runtime, at_path(runtime, item, path), out);
  }
  return runtime.text(std::move(out));
}

Value string(Runtime& runtime, const Value& self, Call&) {
  return to_string(runtime, self);
}

Value safe(Runtime& runtime, const Value& self, Call&) {
  const Value text = to_string(runtime, self);
  return Value::text(text.as_text(), true, text.origin());
}

Value escape(Runtime& runtime, const Value& self, Call&) {
  if (self.is_markup()) return self;
  const Value plain = to_string(runtime, self);
  std::string out;
  runtime.read(plain.as_text());
  write_escaped(plain.as_text(), out);
  const Value text = runtime.text_from(plain, std::move(out));
  return Value::text(text.as_text(), true, text.origin());
}

Value tojson(Runtime& runtime, const Value& self, Call& call) {
  JsonStyle style;
  style.ascii_only = truthy(call.optional(0, "ensure_ascii", Value::boolean(false)));
  const Value indent = call.optional(1, "indent", Value::none());
  const Value separators = call.optional(2, "separators", Value::none());
  style.sort_keys = truthy(call.optional(3, "sort_keys", Value::boolean(false)));
  style.pretty = !indent.is_none();
  if (style.pretty) {
    style.item_separator = ",";
    const Value space = indent.is_string()
                            ? indent
                            : arithmetic(runtime, Operator::kMultiply, Value::text(" "), indent);
    style.indent = space.as_text();
  }
  if (!separators.is_none()) {
    const auto pair = elements(runtime, separators);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      fail("separators must be two texts");
    }
    style.item_separator = pair[0].as_text();
    style.key_separator = pair[1].as_text();
  }
  std::string out;
  write_json(runtime, self, style, out);
  return runtime.text(std::move(out));
}

Value wordcount(Runtime& runtime, const Value& self, Call&) {
  const std::string_view text = text_of(runtime, self);
  runtime.read(text);
  std::int64_t words = 0;
  bool inside = false;
  for_each_character(text, [&](std::string_view character) {
    const CodePoint c = decode(character, 0);
    const bool word = c.valid && is_word(c.value);
    words += word && !inside ? 1 : 0;
    inside = word;
  });
  return Value::integer(words);
}

Value center(Runtime& runtime, const Value& self, Call& call) {
  const Value width = call.optional(0, "width", Value::integer(80));
  const Value text = to_string(runtime, self);
  return pad(runtime, text, " ", {to_index(width, "width must be an integer"), 0.5});
}

Value format(Runtime& runtime, const Value& self, Call& call) {
  const auto given = call.rest(0);
  std::vector<Pair> named;
  for (auto& [name, value] : call.named) {
    named.emplace_back(Value::text(name), value);
    name = {};
  }
  if (!given.empty() && !named.empty()) fail("format takes positions or names, not both");
  const Value values =
      named.empty() ? runtime.tuple({given.begin(), given.end()}) : runtime.dict(std::move(named));
  return percent_format(runtime, to_string(runtime, self), values);
}

Value truncate(Runtime& runtime, const Value& self, Call& call) {
  const std::int64_t length = to_index(call.optional(0, "length", Value::integer(255)), "length");
  const bool kill_words = truthy(call.optional(1, "killwords", Value::boolean(false)));
  const Value end = call.optional(2, "end", Value::text("..."));
  const Value leeway = call.optional(3, "leeway", Value::none());
  const std::int64_t slack = leeway.is_none() ? 5 : to_index(leeway, "leeway");
  if (!end.is_string()) fail("truncate needs text as its end");
  const auto end_size = static_cast<std::int64_t>(count_characters(end.as_text()));
  if (length < end_size || slack < 0)
    fail("truncate: expected length >= {} and leeway >= 0", end_size);
  if (static_cast<std::int64_t>(jinja::length(runtime, self)) <= checked_add(length, slack)) {
    return self;
  }
  if (!self.is_string()) fail("truncate needs text, not {}", type_name(self));
  const auto kept = character_offset(self.as_text(), static_cast<std::size_t>(length - end_size));
  std::string_view head = self.as_text().substr(0, kept);
  if (!kill_words) head = head.substr(0, head.rfind(' '));
  return arithmetic(runtime, Operator::kAdd, self.part(head), end);
}

constexpr std::array<NamedBuiltin, 17> kTextFilters = {{
    {"capitalize", change_case<capitalize>},
    {"center", center},
    {"e", escape},
    {"escape", escape},
    {"format", format},
    {"indent", indent},
    {"join", join},
    {"lower", change_case<to_lower>},
    {"replace", replace},
    {"safe", safe},
    {"string", string},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", change_case<to_upper>},
    {"wordcount", wordcount},
}};

}  // namespace

std::span<const NamedBuiltin> text_filters() {
  return kTextFilters;
}

}  // namespace protean::jinja

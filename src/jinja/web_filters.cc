// jinja2's filters for web pages and mail.

#include <algorithm>
#include <array>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/text_search.h"
#include "jinja/unicode.h"
#include "jinja/word_wrap.h"

namespace protean::jinja {
namespace {

Value force_escape(Runtime& runtime, const Value& self, Call&) {
  std::string out;
  const std::string_view text = text_of(runtime, self);
  runtime.read(text);
  write_escaped(text, out);
  return runtime.text(std::move(out), true);
}

// Percent-encodes a value. In a query '/' is encoded too, and a space becomes '+'.
void write_quoted(Runtime& runtime, const Value& value, bool query, std::string& out) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  const std::string_view text = text_of(runtime, value);
  runtime.spend_steps(text.size() / 4);
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter || c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query)) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kHex[byte / 16];
      out += kHex[byte % 16];
    }
  }
  runtime.check_output(out.size());
}

Value url_encode(Runtime& runtime, const Value& self, Call&) {
  std::string out;
  if (self.is_string() || !(is_iterable(self) || self.is_undefined())) {
    write_quoted(runtime, self, false, out);
    return runtime.text(std::move(out));
  }
  const auto add = [&](const Value& name, const Value& value) {
    if (!out.empty()) out += '&';
    write_quoted(runtime, name, true, out);
    out += '=';
    write_quoted(runtime, value, true, out);
  };
  if (self.is(Type::kDict)) {
    for (const Pair& item : self.as_dict().items) add(item.first, item.second);
    return runtime.text(std::move(out));
  }
  for (const Value& item : elements(runtime, self)) {
    const auto pair = elements(runtime, item);
    if (pair.size() != 2) fail("urlencode needs pairs of a name and a value");
    add(pair[0], pair[1]);
  }
  return runtime.text(std::move(out));
}

Value xml_attributes(Runtime& runtime, const Value& self, Call& call) {
  const bool space = truthy(call.optional(0, "autospace", Value::boolean(true)));
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is(Type::kDict)) fail("xmlattr needs a mapping, not {}", type_name(self));
  std::string out;
  for (const Pair& item : self.as_dict().items) {
    if (item.second.is_none() || item.second.is_undefined()) continue;
    if (!item.first.is_string()) fail("the name of an attribute must be text");
    const std::string_view name = item.first.as_text();
    if (name.find_first_of(" \t\n\v\f\r/>=") != std::string_view::npos) {
      fail("'{}' cannot be the name of an attribute", name);
    }
    if (space || !out.empty()) out += ' ';
    write_escaped(name, out);
    out += "=\"";
    const std::string_view value = text_of(runtime, item.second);
    runtime.read(value);
    item.second.is_markup() ? void(out += value) : write_escaped(value, out);
    out += '"';
    runtime.check_output(out.size());
  }
  return runtime.text(std::move(out));
}

Value file_size(Runtime& runtime, const Value& self, Call& call) {
  const bool binary = truthy(call.optional(0, "binary", Value::boolean(false)));
  Value size = self;
  if (self.is_string()) {
    Call to_float;
    to_float.positional.push_back(Value::none());
    size = find_filter("float")(runtime, self, to_float);
  }
  if (size.is_undefined()) fail_undefined(size);
  if (!size.is_number()) fail("filesizeformat needs a number");
  const double bytes = size.as_number();
  constexpr std::array<double, 9> kDecimal = {1e3, 1e6, 1e9, 1e12, 1e15, 1e18, 1e21, 1e24, 1e27};
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::text("1 Byte");
  if (bytes < base) {
    if (bytes <= -9e18) fail("a size of {} is out of range", bytes);
    return runtime.text(fmt::format("{} Bytes", static_cast<std::int64_t>(bytes)));
  }
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  std::size_t at = 0;
  for (; at < kPrefixes.size(); ++at) {
    unit = binary ? unit * base : kDecimal[at + 1];
    if (bytes < unit) break;
  }
  at = std::min(at, kPrefixes.size() - 1);
  const char prefix = binary && at == 0 ? 'K' : kPrefixes[at];
  return runtime.text(fmt::format("{:.1f} {}{}", base * bytes / unit, prefix, binary ? "iB" : "B"));
}

Value word_wrap(Runtime& runtime, const Value& self, Call& call) {
  Wrapping style;
  style.width = to_index(call.optional(0, "width", Value::integer(79)), "width");
  style.break_long_words = truthy(call.optional(1, "break_long_words", Value::boolean(true)));
  const Value separator = call.optional(2, "wrapstring", Value::none());
  style.break_on_hyphens = truthy(call.optional(3, "break_on_hyphens", Value::boolean(true)));
  const std::string_view line_end = separator.is_none() ? "\n" : text_of(runtime, separator);
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is_string()) fail("wordwrap needs text, not {}", type_name(self));
  std::string out;
  bool first = true;
  for (const std::string_view line : split_lines(self.as_text(), false)) {
    if (style.width <= 0) fail("invalid width {} (must be > 0)", style.width);
    runtime.spend_steps(1 + line.size());
    const std::vector<std::string> wrapped = wrap_line(line, style);
    for (std::size_t i = 0; i < std::max<std::size_t>(wrapped.size(), 1); ++i) {
      if (!first) out += line_end;
      first = false;
      if (!wrapped.empty()) out += wrapped[i];
      runtime.check_output(out.size());
    }
  }
  return runtime.text(std::move(out));
}

constexpr std::array<NamedBuiltin, 5> kWebFilters = {{
    {"filesizeformat", file_size},
    {"forceescape", force_escape},
    {"urlencode", url_encode},
    {"wordwrap", word_wrap},
    {"xmlattr", xml_attributes},
}};

}  // namespace

std::span<const NamedBuiltin> web_filters() {
  return kWebFilters;
}

}  // namespace protean::jinja

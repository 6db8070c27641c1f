#include "jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

void write_string_repr(std::string_view text, std::string& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for_each_character(text, [&](std::string_view character) {
    const CodePoint c = decode(character, 0);
    if (c.value == static_cast<char32_t>(quote) || c.value == '\\') {
      out += '\\';
      out += character;
    } else if (c.value == '\n') {
      out += "\\n";
    } else if (c.value == '\r') {
      out += "\\r";
    } else if (c.value == '\t') {
      out += "\\t";
    } else if (c.valid && is_printable(c.value)) {
      out += character;
    } else if (c.value < 0x100) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned>(c.value));
    } else if (c.value < 0x10000) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c.value));
    } else {
      fmt::format_to(std::back_inserter(out), "\\U{:08x}", static_cast<unsigned>(c.value));
    }
  });
  out += quote;
}

void write_items(Runtime& runtime, const std::vector<Value>& items, std::string& out) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    write_repr(runtime, items[i], out);
  }
}

void write_sequence(Runtime& runtime, const Sequence& sequence, std::string& out) {
  using Kind = Sequence::Kind;
  switch (sequence.kind) {
    case Kind::kGenerator:
      refuse("a generator cannot be printed; use the list or join filter on it");
    case Kind::kRange:
      fmt::format_to(std::back_inserter(out), "range({}, {}", sequence.start, sequence.stop);
      if (sequence.step != 1) fmt::format_to(std::back_inserter(out), ", {}", sequence.step);
      out += ')';
      return;
    case Kind::kTuple:
      out += '(';
      write_items(runtime, sequence.items, out);
      out += sequence.items.size() == 1 ? ",)" : ")";
      return;
    case Kind::kList:
      out += '[';
      write_items(runtime, sequence.items, out);
      out += ']';
      return;
    default:
      out += type_name(Value(const_cast<Sequence*>(&sequence)));
      out += "([";
      write_items(runtime, sequence.items, out);
      out += "])";
  }
}

void write_dict(Runtime& runtime, const Dict& dict, std::string& out) {
  out += '{';
  for (const auto& [key, value] : dict.items) {
    if (&key != &dict.items.front().first) out += ", ";
    write_repr(runtime, key, out);
    out += ": ";
    write_repr(runtime, value, out);
  }
  out += '}';
}

// Writes a value that is not text. Its str() and repr() are the same.
void write_other(Runtime& runtime, const Value& value, std::string& out) {
  switch (value.type()) {
    case Type::kNone:
      out += "None";
      return;
    case Type::kBool:
      out += value.as_integer() != 0 ? "True" : "False";
      return;
    case Type::kInt:
      fmt::format_to(std::back_inserter(out), "{}", value.as_integer());
      return;
    case Type::kFloat:
      out += float_text(value.as_number());
      return;
    case Type::kSequence:
      return write_sequence(runtime, value.as_sequence(), out);
    case Type::kDict:
      return write_dict(runtime, value.as_dict(), out);
    default:
      refuse("a value of type {} cannot be printed", type_name(value));
  }
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style, std::string& out)
      : runtime_(runtime), style_(style), out_(out) {}

  void write(const Value& value) {
    const Deeper deeper(runtime_);
    runtime_.spend_steps(1);
    switch (value.type()) {
      case Type::kNone:
        out_ += "null";
        return;
      case Type::kBool:
        out_ += value.as_integer() != 0 ? "true" : "false";
        return;
      case Type::kInt:
        return write_other(runtime_, value, out_);
      case Type::kFloat:
        out_ += json_float(value.as_number());
        return;
      case Type::kString:
        return write_string(value.as_text());
      case Type::kDict:
        return write_object(value.as_dict());
      case Type::kSequence:
        if (value.as_sequence().kind <= Sequence::Kind::kTuple) {
          return write_array(value.as_sequence().items);
        }
        [[fallthrough]];
      default:
        fail("Object of type {} is not JSON serializable", type_name(value));
    }
  }

 private:
  static std::string json_float(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return float_text(number);
  }

  void write_string(std::string_view text) {
    runtime_.read(text);
    out_ += '"';
    for_each_character(text, [&](std::string_view c) { write_character(c, decode(c, 0)); });
    out_ += '"';
    runtime_.check_output(out_.size());
  }

  void write_character(std::string_view bytes, CodePoint c) {
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
    constexpr std::string_view kLetters = "\"\\bfnrt";
    const auto named = c.value < 0x80 ? kShort.find(static_cast<char>(c.value)) : kShort.npos;
    if (named != kShort.npos) {
      out_ += '\\';
      out_ += kLetters[named];
    } else if (c.value < 0x20 || (style_.ascii_only && c.value > 0x7E && c.value < 0x10000)) {
      escape(c.value);
    } else if (style_.ascii_only && c.value >= 0x10000) {
      escape(0xD800 + ((c.value - 0x10000) >> 10));
      escape(0xDC00 + ((c.value - 0x10000) & 0x3FF));
    } else {
      out_ += bytes;
    }
  }

  void escape(char32_t unit) {
    fmt::format_to(std::back_inserter(out_), "\\u{:04x}", static_cast<unsigned>(unit));
  }

  void write_key(const Value& key) {
    if (key.is_string()) return write_string(key.as_text());
    if (key.is(Type::kSequence)) {
      fail("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
    out_ += '"';
    write(key);
    out_ += '"';
  }

  void new_line() {
    if (!style_.pretty) return;
    runtime_.spend_steps(1 + style_.indent.size() * level_ / 16);
    out_ += '\n';
    for (std::size_t i = 0; i < level_; ++i) out_ += style_.indent;
    runtime_.check_output(out_.size());
  }

  template <class Items, class WriteItem>
  void write_all(char open, char close, const Items& items, WriteItem&& write_item) {
    out_ += open;
    ++level_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_ += style_.item_separator;
      first = false;
      new_line();
      write_item(item);
    }
    --level_;
    if (!items.empty()) new_line();
    out_ += close;
  }

  void write_array(const std::vector<Value>& items) {
    write_all('[', ']', items, [&](const Value& item) { write(item); });
  }

  void write_object(const Dict& dict) {
    const auto write_pair = [&](const Pair& item) {
      write_key(item.first);
      out_ += style_.key_separator;
      write(item.second);
    };
    if (!style_.sort_keys) return write_all('{', '}', dict.items, write_pair);
    std::vector<Pair> sorted;
    for (const std::uint32_t i : dict.by_key) {
      if (!dict.items[i].first.is_string()) fail("sort_keys needs keys that are strings");
      sorted.push_back(dict.items[i]);
    }
    write_all('{', '}', sorted, write_pair);
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string& out_;
  std::size_t level_ = 0;
};

}  // namespace

// repr(float): the shortest digits that read back, without an exponent from 1e-4 to 1e16.
std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = scientific.find('e');
  int exponent = 0;
  const char* digits_of_exponent = buffer + e + (scientific[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  std::string fixed(512, '\0');
  const auto fixed_end =
      std::to_chars(fixed.data(), fixed.data() + fixed.size(), number, std::chars_format::fixed)
          .ptr;
  fixed.resize(static_cast<std::size_t>(fixed_end - fixed.data()));
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

void write_text(Runtime& runtime, const Value& value, std::string& out) {
  if (value.is_string()) {
    runtime.spend_steps(value.as_text().size() / 64);
    out += value.as_text();
  } else if (!value.is_undefined()) {
    const Deeper deeper(runtime);
    write_other(runtime, value, out);
  }
  runtime.check_output(out.size());
}

void write_text(Runtime& runtime, const Value& value, MarkedText& out) {
  if (!value.is_string()) return write_text(runtime, value, out.text);
  runtime.spend_steps(value.as_text().size() / 64);
  runtime.append(out, value);
  runtime.check_output(out.text.size());
}

void write_repr(Runtime& runtime, const Value& value, std::string& out) {
  const Deeper deeper(runtime);
  runtime.spend_steps(1);
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_string()) {
    runtime.read(value.as_text());
    if (value.is_markup()) out += "Markup(";
    write_string_repr(value.as_text(), out);
    if (value.is_markup()) out += ')';
  } else {
    write_other(runtime, value, out);
  }
  runtime.check_output(out.size());
}

Value to_string(Runtime& runtime, const Value& value) {
  return value.is_string() ? value : Value::text(text_of(runtime, value));
}

std::string_view text_of(Runtime& runtime, const Value& value) {
  if (value.is_string()) return value.as_text();
  if (value.is_undefined()) return "";
  std::string out;
  write_text(runtime, value, out);
  return runtime.text(std::move(out)).as_text();
}

void write_escaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
}

void write_json(Runtime& runtime, const Value& value, const JsonStyle& style, std::string& out) {
  JsonWriter(runtime, style, out).write(value);
}

}  // namespace protean::jinja

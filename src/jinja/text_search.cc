#include "jinja/text_search.h"

#include <algorithm>
#include <cstring>

#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

constexpr auto kNone = std::string_view::npos;

bool space_at(std::string_view text, std::size_t at, std::size_t* bytes) {
  const CodePoint c = decode(text, at);
  *bytes = c.bytes;
  return c.valid && is_space(c.value);
}

std::size_t word_end(std::string_view text) {
  std::size_t at = 0, bytes = 0;
  while (at < text.size() && !space_at(text, at, &bytes)) at += bytes;
  return at;
}

// Whether str.splitlines() breaks lines here.
bool breaks_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return kNone;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? kNone
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t find_last(std::string_view text, std::string_view part) {
  if (part.empty()) return text.size();
  std::size_t last = kNone;
  for (std::size_t at = find_text(text, part, 0); at != kNone; at = find_text(text, part, at + 1)) {
    last = at;
  }
  return last;
}

Pieces split_at(std::string_view text, std::string_view separator, std::int64_t most) {
  Pieces pieces;
  std::size_t from = 0;
  for (; most > 0; --most) {
    const std::size_t at = find_text(text, separator, from);
    if (at == kNone) break;
    pieces.push_back(text.substr(from, at - from));
    from = at + separator.size();
  }
  pieces.push_back(text.substr(from));
  return pieces;
}

Pieces split_right(std::string_view text, std::string_view separator, std::int64_t most) {
  Pieces pieces;
  std::size_t end = text.size();
  for (; most > 0; --most) {
    const std::size_t at = text.substr(0, end).rfind(separator);
    if (at == kNone) break;
    pieces.push_back(text.substr(at + separator.size(), end - at - separator.size()));
    end = at;
  }
  pieces.push_back(text.substr(0, end));
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

Pieces split_space(std::string_view text, std::int64_t most) {
  Pieces pieces;
  for (text = strip_left(text); !text.empty(); --most) {
    if (most <= 0) {
      pieces.push_back(text);
      break;
    }
    const std::size_t end = word_end(text);
    pieces.push_back(text.substr(0, end));
    text = strip_left(text.substr(end));
  }
  return pieces;
}

Pieces split_space_right(std::string_view text, std::int64_t most) {
  Pieces words = split_space(text, INT64_MAX);
  if (static_cast<std::int64_t>(words.size()) <= most || words.empty()) return words;
  // The text before the last `most` words is one piece, with the white space in front.
  const std::size_t together = words.size() - static_cast<std::size_t>(most);
  const std::string_view last = words[together - 1];
  Pieces pieces = {
      text.substr(0, static_cast<std::size_t>(last.data() + last.size() - text.data()))};
  pieces.insert(pieces.end(), words.begin() + static_cast<std::ptrdiff_t>(together), words.end());
  return pieces;
}

Pieces split_lines(std::string_view text, bool keep_ends) {
  Pieces lines;
  std::size_t from = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    std::size_t next = at + c.bytes;
    if (c.valid && breaks_line(c.value)) {
      if (c.value == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(from, (keep_ends ? next : at) - from));
      from = next;
    }
    at = next;
  }
  if (from < text.size()) lines.push_back(text.substr(from));
  return lines;
}

MarkedText replace_text(Runtime& runtime, const Value& value, const Replacement& change) {
  const std::string_view text = value.as_text();
  runtime.read(text);
  MarkedText out;
  std::size_t from = 0;
  const auto put = [&](const Value& part) {
    runtime.append(out, part);
    runtime.check_output(out.text.size());
  };
  std::int64_t left = change.most < 0 ? INT64_MAX : change.most;
  for (; left > 0; --left) {
    runtime.spend_steps(1 + change.to.as_text().size() / 64);
    const std::size_t at = find_text(text, change.from, from);
    if (at == kNone) break;
    put(value.part(text.substr(from, at - from)));
    put(change.to);
    from = at + change.from.size();
    if (!change.from.empty()) continue;
    if (at == text.size()) return out;  // an empty part is found between characters and at the end
    const std::size_t bytes = decode(text, at).bytes;
    put(value.part(text.substr(at, bytes)));
    from = at + bytes;
  }
  put(value.part(text.substr(from)));
  return out;
}

std::string_view strip_text(Runtime& runtime, std::string_view text, const Value& set,
                            Sides sides) {
  if (set.is_none()) {
    if (sides.left) text = strip_left(text);
    return sides.right ? strip_right(text) : text;
  }
  if (!set.is_string()) fail("strip arg must be None or str, not {}", type_name(set));
  runtime.spend_steps(text.size() * set.as_text().size() / 256);
  if (sides.left) text = strip_left(text, set.as_text());
  return sides.right ? strip_right(text, set.as_text()) : text;
}

Value pad(Runtime& runtime, const Value& text, std::string_view fill, Padding padding) {
  runtime.read(text.as_text());
  const auto size = static_cast<std::int64_t>(count_characters(text.as_text()));
  if (padding.width <= size) return text;
  const std::int64_t missing = padding.width - size;
  runtime.check_output(static_cast<std::size_t>(missing));
  runtime.spend_steps(static_cast<std::size_t>(missing));
  std::int64_t left = padding.left_share == 0 ? 0 : missing;
  if (padding.left_share == 0.5) left = missing / 2 + (missing & padding.width & 1);
  MarkedText out;
  for (std::int64_t i = 0; i < left; ++i) out.text += fill;
  runtime.append(out, text);
  for (std::int64_t i = left; i < missing; ++i) out.text += fill;
  return runtime.text(std::move(out), text.is_markup());
}

bool has_only_case(std::string_view text, bool upper) {
  bool found = false, other = false;
  for_each_character(text, [&](std::string_view character) {
    const CodePoint c = decode(character, 0);
    if (!c.valid) return;
    found = found || (upper ? is_upper(c.value) : is_lower(c.value));
    other = other || (upper ? is_lower(c.value) : is_upper(c.value));
  });
  return found && !other;
}

}  // namespace protean::jinja

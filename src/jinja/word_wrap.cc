#include "jinja/word_wrap.h"

#include <algorithm>
#include <span>

#include "jinja/unicode.h"

namespace protean::jinja {
namespace {

struct Character {
  char32_t point;
  std::string_view bytes;
};
using Text = std::span<const Character>;

bool is_break(char32_t c) {  // white space for Python's textwrap
  return (c >= '\t' && c <= '\r') || c == ' ';
}
bool is_word_or_mark(char32_t c) {
  return is_word(c) || c == '!' || c == '"' || c == '\'' || c == '&' || c == '.' || c == ',' ||
         c == '?';
}
bool is_letter(char32_t c) {
  return is_word(c) && !is_digit(c);
}

// Cuts text where a line may break: into white space, words, parts of hyphenated words and dashes.
class Chunks {
 public:
  Chunks(Text text, bool hyphens) : text_(text), hyphens_(hyphens) {}

  std::vector<Text> all() const {
    std::vector<Text> chunks;
    for (std::size_t at = 0; at < text_.size();) {
      const std::size_t end = is_break(text_[at].point) ? space_end(at) : word_end(at);
      chunks.push_back(text_.subspan(at, end - at));
      at = end;
    }
    return chunks;
  }

 private:
  bool letter(std::size_t at) const { return at < text_.size() && is_letter(text_[at].point); }
  bool hyphen(std::size_t at) const { return at < text_.size() && text_[at].point == '-'; }
  bool mark(std::size_t at) const { return is_word_or_mark(text_[at].point); }

  std::size_t space_end(std::size_t at) const {
    while (at < text_.size() && is_break(text_[at].point)) ++at;
    return at;
  }

  // Returns the end of a dash of two or more hyphens between words, or `at`.
  std::size_t dash_end(std::size_t at) const {
    if (at == 0 || !mark(at - 1) || !hyphen(at) || !hyphen(at + 1)) return at;
    std::size_t end = at;
    while (hyphen(end)) ++end;
    return end < text_.size() && is_word(text_[end].point) ? end : at;
  }

  // Whether a line may break after the hyphen at `at`, as in textwrap: with two letters, or a
  // letter, a hyphen and a letter, on both sides.
  bool breaks_behind_hyphen(std::size_t at) const {
    if (!hyphen(at)) return false;
    const bool two = at >= 2 && letter(at - 1) && letter(at - 2);
    const bool three = at >= 3 && mark(at - 1) && hyphen(at - 2) && letter(at - 3);
    return (two || three) && letter(at + 1) &&
           (letter(at + 2) || (hyphen(at + 2) && letter(at + 3)));
  }

  std::size_t word_end(std::size_t at) const {
    if (!hyphens_) {
      while (at < text_.size() && !is_break(text_[at].point)) ++at;
      return at;
    }
    const std::size_t dashes = dash_end(at);
    if (dashes > at) return dashes;
    for (std::size_t end = at + 1;; ++end) {
      if (breaks_behind_hyphen(end)) return end + 1;
      if (end == text_.size() || is_break(text_[end].point)) return end;
      if (dash_end(end) > end) return end;
    }
  }

  Text text_;
  bool hyphens_;
};

bool is_blank(Text chunk) {
  return std::all_of(chunk.begin(), chunk.end(),
                     [](const Character& c) { return is_space(c.point); });
}

// Returns how much of a chunk that is longer than a line fits into `space`.
std::size_t long_part(Text chunk, std::size_t space, bool hyphens) {
  if (!hyphens || chunk.size() <= space) return std::min(space, chunk.size());
  for (std::size_t at = space; at-- > 1;) {
    if (chunk[at].point != '-') continue;
    const bool word = std::any_of(chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(at),
                                  [](const Character& c) { return c.point != '-'; });
    return word ? at + 1 : space;
  }
  return space;
}

std::string joined(const std::vector<Text>& line) {
  std::string out;
  for (const Text chunk : line) {
    for (const Character& c : chunk) out += c.bytes;
  }
  return out;
}

}  // namespace

std::vector<std::string> wrap_line(std::string_view text, const Wrapping& style) {
  std::vector<Character> characters;
  for_each_character(text, [&](std::string_view character) {
    characters.push_back({decode(character, 0).value, character});
  });
  std::vector<Text> chunks = Chunks(characters, style.break_on_hyphens).all();
  const auto width = static_cast<std::size_t>(style.width);
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < chunks.size();) {
    std::vector<Text> line;
    std::size_t size = 0;
    if (!lines.empty() && is_blank(chunks[at])) ++at;
    while (at < chunks.size() && size + chunks[at].size() <= width) {
      size += chunks[at].size();
      line.push_back(chunks[at++]);
    }
    if (at < chunks.size() && chunks[at].size() > width) {
      if (style.break_long_words) {
        const std::size_t part = long_part(chunks[at], width - size, style.break_on_hyphens);
        line.push_back(chunks[at].first(part));
        chunks[at] = chunks[at].subspan(part);
      } else if (line.empty()) {
        line.push_back(chunks[at++]);
      }
    }
    if (!line.empty() && is_blank(line.back())) line.pop_back();
    if (!line.empty()) lines.push_back(joined(line));
  }
  return lines;
}

}  // namespace protean::jinja

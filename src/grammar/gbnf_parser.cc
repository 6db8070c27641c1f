#include "grammar/gbnf_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tokenizer/utf8.h"

namespace protean::grammar {

namespace {

constexpr std::size_t kMaxRules = 2000;
constexpr std::uint32_t kMaxRounds = 100000;
constexpr int kMaxGroups = 64;  // within each other

bool is_name_character(CodePoint c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

std::string shown(CodePoint c) {
  if (c < 0) {
    return "the end of the grammar";
  }
  if (c < 0x20) {
    return c == '\n' ? "the end of the line" : fmt::format("the character 0x{:02x}", c);
  }
  std::string text = "\"";
  append_utf8(text, c);
  return text + '"';
}

// A recursive-descent parser. After an error all functions return at once; the first one is kept.
class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : characters_(code_points(text)) {}

  Result<GbnfSyntax> parse() {
    skip_space(true);
    while (!error_ && peek() >= 0) {
      read_rule();
      skip_space(true);
    }
    resolve();
    if (error_) {
      return *error_;
    }
    return std::move(syntax_);
  }

 private:
  static constexpr CodePoint kEnd = -1;

  CodePoint peek(std::size_t ahead = 0) const {
    return at_ + ahead < characters_.size() ? characters_[at_ + ahead] : kEnd;
  }
  CodePoint take() {
    const CodePoint c = peek();
    ++at_;
    if (c == '\n') {
      ++place_.line;
      place_.column = 1;
    } else {
      ++place_.column;
    }
    return c;
  }
  bool take(CodePoint wanted) {
    const bool found = peek() == wanted;
    if (found) {
      take();
    }
    return found;
  }
  void fail(TextPlace place, std::string_view what, ErrorCode code = ErrorCode::kInvalidArgument) {
    if (!error_) {
      error_ = gbnf_error(code, place, what);
    }
  }
  void expected(std::string_view what) {
    fail(place_, fmt::format("expected {}, found {}", what, shown(peek())));
  }

  // Skips blanks and comments, and line ends if `lines`.
  void skip_space(bool lines) {
    for (;;) {
      const CodePoint c = peek();
      if (c == '#') {
        while (peek() != kEnd && peek() != '\n' && peek() != '\r') {
          take();
        }
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        take();
      } else {
        return;
      }
    }
  }

  std::string read_name() {
    std::string name;
    while (is_name_character(peek())) {
      name += static_cast<char>(take());
    }
    return name;
  }

  void read_rule() {
    const TextPlace place = place_;
    const std::string name = read_name();
    if (name.empty()) {
      return expected("the name of a rule");
    }
    skip_space(false);
    if (!take(':') || !take(':') || !take('=')) {
      return fail(place_, fmt::format("expected \"::=\" after the name \"{}\"", name));
    }
    skip_space(true);
    GbnfRule rule{.name = name, .body = read_alternatives(0), .place = place};
    if (!error_ && peek() != kEnd && peek() != '\n' && peek() != '\r') {
      return expected("the end of the line");
    }
    if (syntax_.rules.size() >= kMaxRules) {
      return fail(place, fmt::format("the grammar has more than {} rules", kMaxRules),
                  ErrorCode::kExhausted);
    }
    if (!index_.emplace(name, syntax_.rules.size()).second) {
      return fail(place, fmt::format("the rule \"{}\" is defined twice", name));
    }
    syntax_.rules.push_back(std::move(rule));
  }

  GbnfNode read_alternatives(int groups) {
    GbnfNode node{.kind = GbnfNode::Kind::kAlternatives, .place = place_};
    do {
      skip_space(!node.parts.empty() || groups > 0);
      node.parts.push_back(read_sequence(groups));
    } while (!error_ && take('|'));
    return node.parts.size() == 1 ? std::move(node.parts.front()) : std::move(node);
  }

  GbnfNode read_sequence(int groups) {
    GbnfNode sequence{.kind = GbnfNode::Kind::kSequence, .place = place_};
    while (!error_) {
      const CodePoint c = peek();
      if (c == '"' || c == '[' || c == '(' || c == '.' || c == '<' || c == '!' ||
          is_name_character(c)) {
        sequence.parts.push_back(read_repeated(groups));
        skip_space(groups > 0);
      } else {
        break;
      }
    }
    return sequence;
  }

  // Reads an element and the repeats after it.
  GbnfNode read_repeated(int groups) {
    GbnfNode node = read_element(groups);
    skip_space(groups > 0);
    while (!error_) {
      const TextPlace place = place_;
      Loop loop;
      if (take('*')) {
        loop = {0, kNoLimit};
      } else if (take('+')) {
        loop = {1, kNoLimit};
      } else if (take('?')) {
        loop = {0, 1};
      } else if (take('{')) {
        loop = read_bounds(place);
      } else {
        break;
      }
      GbnfNode repeat{.kind = GbnfNode::Kind::kRepeat, .loop = loop, .place = place};
      repeat.parts.push_back(std::move(node));
      node = std::move(repeat);
      skip_space(groups > 0);
    }
    return node;
  }

  std::uint32_t read_count() {
    const TextPlace place = place_;
    std::uint32_t count = 0;
    if (peek() < '0' || peek() > '9') {
      expected("a number");
    }
    while (peek() >= '0' && peek() <= '9') {
      count = std::min(count * 10 + static_cast<std::uint32_t>(take() - '0'), kMaxRounds + 1);
    }
    if (count > kMaxRounds) {
      fail(place, fmt::format("a repeat of more than {} rounds is too large", kMaxRounds),
           ErrorCode::kExhausted);
    }
    return count;
  }

  Loop read_bounds(TextPlace place) {
    skip_space(false);
    Loop loop{.least = 0, .most = kNoLimit};
    if (peek() != ',') {
      loop.least = read_count();
      loop.most = loop.least;
    }
    skip_space(false);
    if (take(',')) {
      skip_space(false);
      loop.most = peek() == '}' ? kNoLimit : read_count();
      skip_space(false);
    }
    if (!take('}')) {
      expected("\"}\"");
    } else if (loop.most < loop.least) {
      fail(place, fmt::format("a repeat of {{{},{}}} makes no sense", loop.least, loop.most));
    }
    return loop;
  }

  GbnfNode read_element(int groups) {
    const TextPlace place = place_;
    switch (peek()) {
      case '"':
        return read_text(place);
      case '[':
        return read_class(place);
      case '.':
        take();
        return {.kind = GbnfNode::Kind::kCharacter,
                .characters = CharacterClass::all(),
                .place = place};
      case '(':
        return read_group(place, groups);
      case '<':
      case '!':
        fail(place, "tokens in angle brackets are not supported: write their text in quotes",
             ErrorCode::kUnsupported);
        return {};
      default: {
        GbnfNode reference{.kind = GbnfNode::Kind::kReference, .place = place};
        reference.text = read_name();
        return reference;
      }
    }
  }

  GbnfNode read_group(TextPlace place, int groups) {
    take();
    if (groups >= kMaxGroups) {
      fail(place, fmt::format("groups are nested deeper than {} levels", kMaxGroups),
           ErrorCode::kExhausted);
      return {};
    }
    GbnfNode group = read_alternatives(groups + 1);
    if (!take(')')) {
      expected("\")\"");
    }
    return group;
  }

  GbnfNode read_text(TextPlace place) {
    take();
    GbnfNode node{.kind = GbnfNode::Kind::kText, .place = place};
    while (!error_ && peek() != '"') {
      if (peek() == kEnd || peek() == '\n') {
        fail(place, "the text that begins here has no closing quote");
        break;
      }
      append_utf8(node.text, read_character());
    }
    take();
    if (node.text.empty()) {
      node.kind = GbnfNode::Kind::kSequence;
    }
    return node;
  }

  GbnfNode read_class(TextPlace place) {
    take();
    const bool inverted = take('^');
    std::vector<CodePointRange> ranges;
    while (!error_ && peek() != ']') {
      if (peek() == kEnd || peek() == '\n') {
        fail(place, "the class that begins here has no closing bracket");
        break;
      }
      const TextPlace begin = place_;
      CodePointRange range;
      range.first = range.last = read_character();
      if (peek() == '-' && peek(1) != ']') {
        take();
        range.last = read_character();
      }
      if (range.last < range.first) {
        fail(begin, "the last character of a range comes before its first");
      }
      ranges.push_back(range);
    }
    take();
    if (ranges.empty()) {
      fail(place, "a class in brackets needs a character");
    }
    const CharacterClass characters{std::move(ranges)};
    return {.kind = GbnfNode::Kind::kCharacter,
            .characters = inverted ? characters.complement() : characters,
            .place = place};
  }

  // Reads a character of a text or class, which may be escaped.
  CodePoint read_character() {
    const TextPlace place = place_;
    const CodePoint c = take();
    if (c != '\\') {
      return c;
    }
    const CodePoint escape = take();
    switch (escape) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return escape;
      case 'x':
        return read_hex(place, 2);
      case 'u':
        return read_hex(place, 4);
      case 'U':
        return read_hex(place, 8);
      default:
        fail(place, fmt::format("unknown escape: a backslash before {}", shown(escape)));
        return 0;
    }
  }

  CodePoint read_hex(TextPlace place, int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const CodePoint c = peek();
      const CodePoint lower = c | 0x20;
      const bool decimal = c >= '0' && c <= '9';
      if (!decimal && (c < 0 || lower < 'a' || lower > 'f')) {
        fail(place, fmt::format("the escape needs {} hexadecimal digits", digits));
        return 0;
      }
      value = value << 4U | static_cast<std::uint32_t>(decimal ? c - '0' : lower - 'a' + 10);
      take();
    }
    if (value > kLastCodePoint || (value >= 0xd800 && value <= 0xdfff)) {
      fail(place, "the escape is no Unicode character");
      return 0;
    }
    return static_cast<CodePoint>(value);
  }

  void resolve() {
    for (GbnfRule& rule : syntax_.rules) {
      resolve(rule.body);
    }
    const auto root = index_.find("root");
    if (root == index_.end()) {
      return fail(place_, "the grammar has no rule \"root\", which says what the answer is");
    }
    syntax_.root = root->second;
  }

  void resolve(GbnfNode& node) {
    if (node.kind == GbnfNode::Kind::kReference) {
      const auto found = index_.find(node.text);
      if (found == index_.end()) {
        return fail(node.place, fmt::format("the rule \"{}\" is not defined", node.text));
      }
      node.rule = found->second;
    }
    for (GbnfNode& part : node.parts) {
      resolve(part);
    }
  }

  const std::vector<CodePoint> characters_;
  std::size_t at_ = 0;
  TextPlace place_;
  GbnfSyntax syntax_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::optional<Error> error_;
};

}  // namespace

Result<GbnfSyntax> parse_gbnf(std::string_view text) {
  return GbnfParser(text).parse();
}

Error gbnf_error(ErrorCode code, TextPlace place, std::string_view what) {
  return make_error(code, "line {}, column {}: {}", place.line, place.column, what);
}

}  // namespace protean::grammar

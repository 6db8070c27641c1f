#include "grammar/regex_parser.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "grammar/regex_escapes.h"
#include "grammar/regex_nfa.h"
#include "tokenizer/utf8.h"

namespace protean::grammar {

namespace {

constexpr int kMaxGroupDepth = 200;
constexpr std::size_t kMaxPatternBytes = 64 * 1024;
constexpr std::uint32_t kMaxRepeat = 100000;

class RegexParser {
 public:
  RegexParser(std::string_view pattern, RegexDialect dialect)
      : reader_(pattern, dialect), dialect_(dialect) {}

  Result<RegexNode> parse() {
    RegexNode node = alternatives(0);
    if (!reader_.failed() && !reader_.at_end()) {
      reader_.fail("there is no '(' for this ')'");
    }
    if (reader_.failed()) {
      return reader_.error();
    }
    return node;
  }

 private:
  RegexNode alternatives(int depth) {
    RegexNode node{.kind = RegexNode::Kind::kAlternatives};
    if (depth > kMaxGroupDepth) {
      reader_.fail("groups are nested too deep");
      return node;
    }
    do {
      node.parts.push_back(sequence(depth));
    } while (!reader_.failed() && reader_.accept('|'));
    return node;
  }

  RegexNode sequence(int depth) {
    RegexNode node{.kind = RegexNode::Kind::kSequence};
    while (!reader_.failed() && !reader_.at_end() && !reader_.looking_at('|') &&
           !reader_.looking_at(')')) {
      RegexNode part = atom(depth);
      if (!reader_.failed()) {
        node.parts.push_back(quantified(std::move(part)));
      }
    }
    return node;
  }

  RegexNode quantified(RegexNode part) {
    std::optional<Loop> loop = quantifier();
    while (loop && !reader_.failed()) {
      if (part.kind == RegexNode::Kind::kTextBegin || part.kind == RegexNode::Kind::kTextEnd) {
        reader_.fail("a quantifier follows an anchor");
        return part;
      }
      if (reader_.looking_at('+')) {
        reader_.refuse("possessive quantifiers");
        return part;
      }
      reader_.accept('?');  // lazy
      RegexNode repeated{.kind = RegexNode::Kind::kRepeat, .loop = *loop};
      repeated.parts.push_back(std::move(part));
      part = std::move(repeated);
      loop = quantifier();
      if (loop) {
        reader_.fail("two quantifiers follow each other");
      }
    }
    return part;
  }

  std::optional<Loop> quantifier() {
    if (reader_.accept('*')) {
      return Loop{0, kNoLimit};
    }
    if (reader_.accept('+')) {
      return Loop{1, kNoLimit};
    }
    if (reader_.accept('?')) {
      return Loop{0, 1};
    }
    return reader_.looking_at('{') ? braces() : std::nullopt;
  }

  // Reads {n}, {n,}, {n,m} or {,m}. Any other brace is an ordinary character.
  std::optional<Loop> braces() {
    const std::size_t start = reader_.position();
    reader_.accept('{');
    const std::optional<std::uint32_t> least = reader_.number(kMaxRepeat);
    std::optional<std::uint32_t> most = least;
    if (reader_.accept(',')) {
      most = reader_.number(kMaxRepeat);
      if (!most && least) {
        most = kNoLimit;
      }
    }
    if (reader_.failed()) {
      return std::nullopt;
    }
    if (!most || !reader_.accept('}')) {
      reader_.rewind(start);
      return std::nullopt;
    }
    if (*most < least.value_or(0)) {
      reader_.fail("a repeat's least is above its most");
    }
    return Loop{least.value_or(0), *most};
  }

  RegexNode atom(int depth) {
    if (reader_.accept('(')) {
      return group(depth);
    }
    if (reader_.accept('[')) {
      return characters(reader_.bracket_class());
    }
    if (reader_.accept('^')) {
      return {.kind = RegexNode::Kind::kTextBegin};
    }
    if (reader_.accept('$')) {
      return {.kind = RegexNode::Kind::kTextEnd};
    }
    if (reader_.accept('.')) {
      return characters(line_ends(dialect_).complement());
    }
    if (reader_.looking_at('*') || reader_.looking_at('+') || reader_.looking_at('?')) {
      reader_.fail("there is nothing to repeat");
      return {};
    }
    if (reader_.accept('\\')) {
      if (reader_.accept('A')) {
        return {.kind = RegexNode::Kind::kTextBegin};
      }
      if (reader_.accept('z') || reader_.accept('Z')) {
        return {.kind = RegexNode::Kind::kTextEnd};
      }
      return characters(reader_.escape(false));
    }
    if (const std::optional<Loop> loop = reader_.looking_at('{') ? braces() : std::nullopt; loop) {
      reader_.fail("there is nothing to repeat");
      return {};
    }
    return characters(CharacterClass::of(reader_.character()));
  }

  RegexNode group(int depth) {
    if (reader_.accept('?')) {
      if (reader_.accept("<=") || reader_.accept("<!")) {
        reader_.refuse("look-behind (?<= and (?<!");
      } else if (reader_.looking_at('=') || reader_.looking_at('!')) {
        reader_.refuse("look-ahead (?= and (?!");
      } else if (reader_.looking_at('>')) {
        reader_.refuse("atomic groups (?>");
      } else if (reader_.accept("P<") || reader_.accept("<")) {
        while (!reader_.at_end() && !reader_.looking_at('>')) {
          reader_.character();
        }
        if (!reader_.accept('>')) {
          reader_.fail("a group's name does not end");
        }
      } else if (!reader_.accept(':')) {
        reader_.refuse("flags, conditions and recursion (?");
      }
    } else if (reader_.looking_at('*')) {
      reader_.refuse("control verbs (*");
    }
    RegexNode node = reader_.failed() ? RegexNode{} : alternatives(depth + 1);
    if (!reader_.failed() && !reader_.accept(')')) {
      reader_.fail("a '(' is never closed");
    }
    return node;
  }

  static RegexNode characters(CharacterClass of) {
    return {.kind = RegexNode::Kind::kCharacter, .characters = std::move(of)};
  }

  RegexReader reader_;
  RegexDialect dialect_;
};

}  // namespace

Result<Language> parse_regex(std::string_view pattern, RegexDialect dialect, RegexMatch match) {
  if (pattern.size() > kMaxPatternBytes) {
    return make_error(ErrorCode::kExhausted, "a pattern has {} bytes, at most {} are taken",
                      pattern.size(), kMaxPatternBytes);
  }
  if (utf8_valid_prefix(pattern) != pattern.size()) {
    return make_error(ErrorCode::kInvalidArgument, "a pattern is not valid UTF-8");
  }
  Result<RegexNode> node = RegexParser(pattern, dialect).parse();
  if (!node) {
    return node.error();
  }
  return regex_language(*node, match == RegexMatch::kSearch);
}

}  // namespace protean::grammar

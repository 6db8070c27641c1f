#pragma once

#include <boost/json/value.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "contract/token_constraint.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// The form that an answer must have, as a value. JSON schemas follow draft 2020-12. A keyword that
// we do not enforce is refused by name and place when the source is compiled, never ignored.
struct GrammarSource;
struct LiteralText {
  std::string text;
};
struct AnyText {                   // UTF-8 text in which none of `until` occurs
  std::vector<std::string> until;  // may be empty
};
struct RegexPattern {  // PCRE without look-around and back-references; matches the whole text
  std::string pattern;
};
// The white space between the tokens of JSON, as patterns. What a pattern matches besides spaces,
// tabs and line ends is not written.
struct JsonWhitespace {
  std::string after_separator = " ?";  // after ':' and ','
  std::string elsewhere = " ?";        // before those, and next to brackets
};
// Writes one space after ':' and ',' and no other white space, as most training text has it.
inline const JsonWhitespace kSpacedSeparators{" ", ""};
struct JsonSchema {
  boost::json::value schema;  // true: any JSON value
  JsonWhitespace whitespace;
  bool open_properties = false;  // the default of additionalProperties
};
// The members of an object in the order of the schema, each between tags: `before_key`, the name,
// `before_value`, the value, `after_value`. Values are JSON. The values of the names in `texts` are
// strings without quotes, in which `text_end` does not occur.
struct TaggedArguments {
  JsonSchema object;
  std::string before_key;
  std::string before_value;
  std::string after_value;
  std::string text_end;
  std::vector<std::string> texts;
};
struct GbnfText {  // a grammar in llama.cpp's GBNF; "root" is the answer (gbnf_parser.h)
  std::string text;
};
struct Concatenation {
  std::vector<GrammarSource> parts;
};
struct Choice {
  std::vector<GrammarSource> options;  // at least one
};
struct Repeat {
  std::vector<GrammarSource> part;  // exactly one
  int least = 0;
  int most = -1;  // -1: unbounded
};
struct GrammarSource {
  std::variant<LiteralText, AnyText, RegexPattern, JsonSchema, TaggedArguments, GbnfText,
               Concatenation, Choice, Repeat>
      what;
};

namespace grammar {
struct Automaton;
}

// A compiled source: a byte-level pushdown automaton. Immutable; any thread may use it.
class Grammar {
 public:
  // Fails with kInvalidArgument if the source is malformed, kUnsupported with the JSON pointer of a
  // keyword that we do not enforce, and kExhausted if the automaton grows beyond its bounds.
  static Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source);

  bool matches(std::string_view text) const;  // the whole text
  const std::shared_ptr<const grammar::Automaton>& automaton() const { return automaton_; }

 private:
  explicit Grammar(std::shared_ptr<const grammar::Automaton> automaton)
      : automaton_(std::move(automaton)) {}

  std::shared_ptr<const grammar::Automaton> automaton_;
};

// Compiles grammars for one vocabulary and keeps them and their masks within a memory budget, so
// that a form which many requests ask for is compiled once. Any thread may use it.
class GrammarTokens {
 public:
  static constexpr std::size_t kDefaultBytes = std::size_t{256} << 20;

  // `vocab` is the number of the model's logits, at least the tokenizer's. The tokens `stop_ids`
  // may come where a grammar can end; special tokens are never part of text. If grammars and masks
  // take more than `most_bytes`, those that no constraint uses are dropped, the least recently used
  // first. Then the largest masks in use are dropped; they are worked out again at the next step.
  GrammarTokens(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids,
                std::size_t most_bytes = kDefaultBytes);
  ~GrammarTokens();

  // Returns a constraint for one answer. Equal keys stand for equal sources. If the grammar is not
  // kept, compiles it and works out the masks that answers begin with, up to tens of milliseconds.
  //
  // The constraint leads to no byte that the vocabulary lacks. Bytes are judged one by one: if some
  // occur in longer tokens only, an answer may still end early.
  //
  // Fails as Grammar::compile() does, with kUnsupported if the vocabulary can write no text of the
  // grammar, and with kUnavailable if the grammars in use leave no memory for another one.
  Result<std::shared_ptr<TokenConstraint>> constrain(const GrammarSource& source,
                                                     const std::string& key) const;
  bool holds(const std::string& key) const;  // true if constrain() need not compile
  std::size_t bytes() const;                 // memory that grammars and masks take now

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace protean

#pragma once

#include <boost/json/value.hpp>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "contract/token_constraint.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// What an answer must look like, as a value. A JSON schema is read as draft 2020-12 says; what it
// can say and we do not enforce is refused by name and place when compiled, never ignored.
struct GrammarSource;
struct LiteralText {
  std::string text;
};
struct AnyText {                   // any UTF-8 text in which none of `until` occurs
  std::vector<std::string> until;  // may be empty
};
struct RegexPattern {  // matches the whole; PCRE-like, without look-around and back-references
  std::string pattern;
};
struct JsonSchema {
  boost::json::value schema;     // true: any JSON value
  bool any_whitespace = true;    // false: only one space after ':' and ','
  bool open_properties = false;  // additionalProperties where a schema does not say
};
// The members of an object, each between tags instead of within braces: `before_key`, its name,
// `before_value`, its value, `after_value`; in the order of the schema. A value is JSON, but for
// those of `texts`: strings, without quotes, in which `text_end` does not occur.
struct TaggedArguments {
  JsonSchema object;
  std::string before_key;
  std::string before_value;
  std::string after_value;
  std::string text_end;
  std::vector<std::string> texts;
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
  int most = -1;  // -1: no bound
};
struct GrammarSource {
  std::variant<LiteralText, AnyText, RegexPattern, JsonSchema, TaggedArguments, Concatenation,
               Choice, Repeat>
      what;
};

// A compiled source: a byte-level pushdown automaton. Immutable, any thread.
class Grammar {
 public:
  // Errors: kInvalidArgument for what is malformed, kUnsupported for what we do not enforce (with
  // the JSON pointer of the keyword), kExhausted for what grows beyond bounds.
  static Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source);

  bool matches(std::string_view text) const;  // the whole of it
  ~Grammar();

 private:
  friend class GrammarTokens;
  struct Automaton;
  explicit Grammar(std::unique_ptr<const Automaton> automaton);
  std::unique_ptr<const Automaton> automaton_;
};

// A tokenizer's vocabulary arranged for masks, made once per model. Special tokens are never part
// of text; `stop_ids` are what may come when the grammar is at an end. Immutable but for caches it
// guards itself: any thread.
class GrammarTokens {
 public:
  // vocab: of the model's logits, at least the tokenizer's.
  GrammarTokens(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids);
  ~GrammarTokens();

  // What to constrain() answers with, to be made once for a grammar: the part of it that this
  // vocabulary can write, so that no answer is led to where its bytes are missing, mostly all of
  // it. kUnsupported when nothing of it can be written. Bytes are looked at one by one: where some
  // are only found in longer tokens, an answer may still come to an early end. Works out the masks
  // that answers begin with, which takes up to tens of milliseconds.
  Result<std::shared_ptr<const Grammar>> prepare(std::shared_ptr<const Grammar> grammar) const;

  // Ready to guide one answer. Shares what was worked out for the same grammar before.
  std::shared_ptr<TokenConstraint> constrain(std::shared_ptr<const Grammar> grammar) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace protean

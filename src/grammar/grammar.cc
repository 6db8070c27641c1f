#include "grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "grammar/automaton.h"
#include "grammar/gbnf_compiler.h"
#include "grammar/language.h"
#include "grammar/regex_parser.h"
#include "grammar/schema_compiler.h"
#include "grammar/stack_sets.h"
#include "tokenizer/utf8.h"

namespace protean {

namespace grammar {
namespace {

constexpr int kMaxNesting = 64;
constexpr std::uint32_t kMaxEmptyRounds = 256;

// Returns true if the empty text is of this form. Rounds of such a part cannot be counted by bytes.
bool may_be_empty(const GrammarSource& source) {
  if (const auto* literal = std::get_if<LiteralText>(&source.what)) {
    return literal->text.empty();
  }
  if (const auto* sequence = std::get_if<Concatenation>(&source.what)) {
    return std::all_of(sequence->parts.begin(), sequence->parts.end(), may_be_empty);
  }
  if (const auto* choice = std::get_if<Choice>(&source.what)) {
    return std::any_of(choice->options.begin(), choice->options.end(), may_be_empty);
  }
  if (const auto* repeat = std::get_if<Repeat>(&source.what)) {
    return repeat->least == 0 ||
           std::all_of(repeat->part.begin(), repeat->part.end(), may_be_empty);
  }
  if (const auto* regex = std::get_if<RegexPattern>(&source.what)) {
    const auto language = parse_regex(regex->pattern, RegexDialect::kPcre, RegexMatch::kWhole);
    return language.ok() && language->accepts("");
  }
  return std::holds_alternative<AnyText>(source.what) ||
         std::holds_alternative<TaggedArguments>(source.what) ||
         std::holds_alternative<GbnfText>(source.what);
}

class SourceCompiler {
 public:
  Result<Automaton> compile(const GrammarSource& source) {
    const StateId begin = builder_.state();
    const StateId end = builder_.state();
    builder_.final(end);
    if (const Status status = emit(source, begin, end, 0); !status) {
      return status.error();
    }
    return builder_.build(begin);
  }

 private:
  Status emit(const GrammarSource& source, StateId from, StateId to, int depth) {
    if (depth > kMaxNesting) {
      return make_error(ErrorCode::kExhausted, "a grammar is nested deeper than {} levels",
                        kMaxNesting);
    }
    return std::visit([&](const auto& what) { return emit_one(what, from, to, depth); },
                      source.what);
  }

  Status emit_one(const LiteralText& literal, StateId from, StateId to, int /*depth*/) {
    if (utf8_valid_prefix(literal.text) != literal.text.size()) {
      return make_error(ErrorCode::kInvalidArgument, "a literal text is not valid UTF-8");
    }
    builder_.literal(from, literal.text, to);
    return {};
  }

  Status emit_one(const AnyText& any, StateId from, StateId to, int /*depth*/) {
    if (std::any_of(any.until.begin(), any.until.end(),
                    [](const std::string& text) { return text.empty(); })) {
      return make_error(ErrorCode::kInvalidArgument, "a text that must not occur is empty");
    }
    const Result<Language> language =
        any.until.empty() ? Language::any(0) : Language::containing(any.until).complement();
    if (!language) {
      return language.error();
    }
    language->emit(builder_, from, Spelling::kPlain, to);
    return {};
  }

  Status emit_one(const RegexPattern& regex, StateId from, StateId to, int /*depth*/) {
    const Result<Language> language =
        parse_regex(regex.pattern, RegexDialect::kPcre, RegexMatch::kWhole);
    if (!language) {
      return language.error();
    }
    language->emit(builder_, from, Spelling::kPlain, to);
    return {};
  }

  Status emit_one(const JsonSchema& schema, StateId from, StateId to, int /*depth*/) {
    return emit_schema(builder_, schema, from, to);
  }

  Status emit_one(const TaggedArguments& arguments, StateId from, StateId to, int /*depth*/) {
    return emit_tagged(builder_, arguments, from, to);
  }

  Status emit_one(const GbnfText& gbnf, StateId from, StateId to, int /*depth*/) {
    return emit_gbnf(builder_, gbnf.text, from, to);
  }

  Status emit_one(const Concatenation& sequence, StateId from, StateId to, int depth) {
    for (const GrammarSource& part : sequence.parts) {
      const StateId next = builder_.state();
      if (Status status = emit(part, from, next, depth + 1); !status) {
        return status;
      }
      from = next;
    }
    builder_.go(from, to);
    return {};
  }

  Status emit_one(const Choice& choice, StateId from, StateId to, int depth) {
    if (choice.options.empty()) {
      return make_error(ErrorCode::kInvalidArgument, "a choice has no options");
    }
    for (const GrammarSource& option : choice.options) {
      // Each option has a state of its own to begin at, so that no loop leads into another option.
      const StateId begin = builder_.state();
      builder_.go(from, begin);
      if (Status status = emit(option, begin, to, depth + 1); !status) {
        return status;
      }
    }
    return {};
  }

  Status emit_one(const Repeat& repeat, StateId from, StateId to, int depth) {
    if (repeat.part.size() != 1 || repeat.least < 0 ||
        (repeat.most >= 0 && repeat.most < repeat.least)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a repeat of {} parts, {} to {} times, makes no sense", repeat.part.size(),
                        repeat.least, repeat.most);
    }
    if (repeat.most == 0) {
      builder_.go(from, to);
      return {};
    }
    const bool empty = may_be_empty(repeat.part.front());
    const auto least = static_cast<std::uint32_t>(empty ? 0 : repeat.least);
    const std::uint32_t most = repeat.most < 0 ? kNoLimit : static_cast<std::uint32_t>(repeat.most);
    if (empty && most != kNoLimit && most > kMaxEmptyRounds) {
      return make_error(ErrorCode::kUnsupported,
                        "a part that may be empty is repeated {} times, at most {} are supported",
                        most, kMaxEmptyRounds);
    }
    const StateId part = builder_.state();
    const StateId part_end = builder_.state();
    builder_.final(part_end);
    if (Status status = emit(repeat.part.front(), part, part_end, depth + 1); !status) {
      return status;
    }
    if (least > 0) {  // AutomatonBuilder::build() needs one round before the loop
      const StateId after_first = builder_.state();
      builder_.call(from, part, after_first);
      from = after_first;
    }
    const std::uint32_t spelt = least > 0 ? 1 : 0;
    // The loop is called, because its count belongs to its frame and repeats may nest.
    const StateId rounds = builder_.state();
    const StateId again = builder_.state();
    const StateId round = builder_.state();
    const StateId done = builder_.state();
    builder_.final(done);
    builder_.call(from, rounds, to);
    builder_.go(rounds, again);
    const std::uint32_t loop =
        builder_.loop(least - spelt, most == kNoLimit ? kNoLimit : most - spelt);
    builder_.count(again, loop, round);
    builder_.call(round, part, again);
    builder_.leave(again, loop, done);
    return {};
  }

  AutomatonBuilder builder_;
};

}  // namespace
}  // namespace grammar

Result<std::shared_ptr<const Grammar>> Grammar::compile(const GrammarSource& source) {
  Result<grammar::Automaton> built = grammar::SourceCompiler().compile(source);
  if (!built) {
    return built.error();
  }
  return std::shared_ptr<const Grammar>(
      new Grammar(std::make_shared<const grammar::Automaton>(*std::move(built))));
}

bool Grammar::matches(std::string_view text) const {
  grammar::StackSets stacks(*automaton_);
  grammar::SetId set = stacks.start();
  for (const char byte : text) {
    set = stacks.step(set, static_cast<std::uint8_t>(byte));
  }
  return stacks.at_end(set);
}

}  // namespace protean

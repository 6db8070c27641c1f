#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "contract/token_constraint.h"
#include "grammar/grammar.h"
#include "http/api_error.h"
#include "server/call/generation_call.h"

namespace protean {

// Makes the constraints that hold answers to a format. May be called from any thread.
class FormatConstraints {
 public:
  virtual ~FormatConstraints() = default;
  // Makes the constraint for one choice. An error names the field and the place in its schema.
  virtual Checked<std::shared_ptr<TokenConstraint>> constrain(const AnswerFormat& format) = 0;
  // True if constrain() is quick because the format was compiled before.
  virtual bool knows(const AnswerFormat& format) const = 0;
};

// Compiles grammars for one model. Refers to the tokenizer.
class FormatCompiler final : public FormatConstraints {
 public:
  // `vocab` is the number of logits; `stop_ids` are the tokens that may end an answer. Grammars and
  // their masks take at most `grammar_bytes` of memory.
  FormatCompiler(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids,
                 std::size_t grammar_bytes = GrammarTokens::kDefaultBytes);

  Checked<std::shared_ptr<TokenConstraint>> constrain(const AnswerFormat& format) override;
  bool knows(const AnswerFormat& format) const override;

 private:
  const bool can_end_;
  const GrammarTokens tokens_;
};

}  // namespace protean

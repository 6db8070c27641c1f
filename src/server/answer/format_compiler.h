#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
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

// Compiles grammars for one model. Caches them, as clients send the same schema with every request,
// and evicts the least recently used beyond a bound. The tokenizer outlives it.
class FormatCompiler final : public FormatConstraints {
 public:
  // `vocab` is the number of logits; `stop_ids` are the tokens that may end an answer.
  FormatCompiler(const Tokenizer& tokenizer, int vocab, std::vector<TokenId> stop_ids);

  Checked<std::shared_ptr<TokenConstraint>> constrain(const AnswerFormat& format) override;
  bool knows(const AnswerFormat& format) const override;

 private:
  using Compiled = std::shared_ptr<const Grammar>;
  using Entry = std::pair<std::string, Compiled>;

  Compiled find(const std::string& key);
  void keep(const std::string& key, Compiled grammar);

  const bool can_end_;
  const GrammarTokens tokens_;
  mutable std::mutex mutex_;
  std::list<Entry> recent_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;
  std::size_t key_bytes_ = 0;
};

}  // namespace protean

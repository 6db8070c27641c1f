#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "contract/step.h"

namespace protean {

// Logits to draw from: logits[i] belongs to tokens[i], or to token i if `tokens` is empty.
struct EditedRow {
  std::span<const float> logits;
  std::span<const TokenId> tokens;  // ascending

  TokenId token(TokenId place) const {
    return tokens.empty() ? place : tokens[static_cast<std::size_t>(place)];
  }
};

// Applies a request's penalties, rules and constraint to a row of logits, in this order:
// repetition, presence and frequency penalty; bias; exclusions. Rules exclude a token by minus
// infinity; a constraint leaves it out, so that a row of few allowed tokens is short. If nothing is
// left, the caller asks again with fewer exclusions. Owns the buffers of one thread.
class LogitEditor {
 public:
  // The exclusions that hold. Without a constraint, kFirm is the list of allowed tokens.
  enum class Exclude : std::uint8_t {
    kAll,   // constraint, allowed tokens, bad words, and stop ids before min_tokens
    kMost,  // all but the stop ids, so that an answer can end
    kFirm,  // the constraint alone
  };

  explicit LogitEditor(int vocab);

  // Returns true if `spec` needs edited logits.
  static bool edits(const SampleSpec& spec);

  // Begins a row. The first spec.prompt_count tokens of `sequence` are the prompt.
  void begin(const SampleSpec& spec, std::span<const TokenId> sequence);

  // Returns the edited row, which is valid until the next call. `logits` must not be this editor's.
  EditedRow edit(std::span<const float> logits, Exclude exclude);

  // Returns the token to draw if even kFirm leaves only NaN: the lowest one that the constraint, or
  // else the list of allowed tokens, allows.
  TokenId last_resort() const;

 private:
  void penalise();
  void add_bias();
  void exclude_all_but_allowed();
  void exclude_bad_words();
  void exclude_banned();
  EditedRow gather_masked(std::span<const float> logits);
  void exclude(TokenId token);
  bool exists(TokenId token) const { return token >= 0 && token < vocab_; }
  std::span<const TokenId> answer() const;

  const int vocab_;
  const SampleSpec* spec_ = nullptr;
  std::span<const TokenId> sequence_;
  std::vector<float> row_;
  std::vector<float> kept_;            // logits of the allowed tokens
  std::vector<std::uint32_t> counts_;  // of each token of the answer; all 0 between uses
  std::vector<std::uint64_t> mask_;
  std::vector<float> gathered_;  // logits of the tokens that the mask allows
  std::vector<TokenId> tokens_;  // the tokens of gathered_
};

}  // namespace protean

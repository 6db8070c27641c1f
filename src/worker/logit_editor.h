#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "contract/step.h"

namespace protean {

// Logits to draw from: of tokens[i], or of token i where `tokens` is empty.
struct EditedRow {
  std::span<const float> logits;
  std::span<const TokenId> tokens;  // ascending

  TokenId token(TokenId place) const {
    return tokens.empty() ? place : tokens[static_cast<std::size_t>(place)];
  }
};

// What a request's penalties, rules and constraint make of a row of logits, in this order:
// repetition, presence and frequency penalty; bias; then what may not be drawn goes: set to minus
// infinity by rules, left out by a constraint, so that a row of few allowed tokens is a short one.
// Bans give way where nothing else is left: the caller asks again with fewer of them. Owns the room
// of one thread.
class LogitEditor {
 public:
  // Which exclusions hold. Without a constraint, kFirm is the list of allowed tokens.
  enum class Exclude : std::uint8_t {
    kAll,   // the constraint, allowed, bad words, and stop ids before min_tokens
    kMost,  // not the stop ids: an answer that must end ends
    kFirm,  // the constraint alone
  };

  explicit LogitEditor(int vocab);

  // Whether a row of `spec` is drawn from edited logits.
  static bool edits(const SampleSpec& spec);

  // Begins a row: `sequence` is the sequence so far, its first spec.prompt_count the prompt.
  void begin(const SampleSpec& spec, std::span<const TokenId> sequence);

  // The edited row, valid until the next call. `logits` must not be this editor's.
  EditedRow edit(std::span<const float> logits, Exclude exclude);

  // The token that is drawn where even kFirm leaves no number to draw by: the lowest that the
  // constraint, or else the list of allowed tokens, names.
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
  std::vector<std::uint32_t> counts_;  // of each token in the answer; all 0 between uses
  std::vector<std::uint64_t> mask_;
  std::vector<float> gathered_;  // logits of the tokens that the mask allows
  std::vector<TokenId> tokens_;  // and those
};

}  // namespace protean

#include "worker/logit_editor.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "worker/candidates.h"

namespace protean {
namespace {

constexpr std::size_t kWordBits = 64;
constexpr std::uint32_t kRepeated = std::uint32_t{1}
                                    << 31;  // bit of a count: the repetition penalty is applied

}  // namespace

LogitEditor::LogitEditor(int vocab) : vocab_(vocab) {}

bool LogitEditor::edits(const SampleSpec& spec) {
  return spec.params.penalises() || spec.rules != nullptr || spec.constraint != nullptr ||
         !spec.banned.empty();
}

void LogitEditor::begin(const SampleSpec& spec, std::span<const TokenId> sequence) {
  check(spec.prompt_count >= 0 && static_cast<std::size_t>(spec.prompt_count) <= sequence.size(),
        "the prompt is part of the sequence so far");
  spec_ = &spec;
  sequence_ = sequence;
  if (spec.constraint != nullptr) {
    mask_.resize(token_mask_words(vocab_));
    spec.constraint->allowed_after(answer(), mask_);
  }
}

std::span<const TokenId> LogitEditor::answer() const {
  return sequence_.subspan(static_cast<std::size_t>(spec_->prompt_count));
}

EditedRow LogitEditor::edit(std::span<const float> logits, Exclude exclude) {
  check(logits.size() == static_cast<std::size_t>(vocab_), "a row has a logit per token");
  const bool masked = spec_->constraint != nullptr;
  if (spec_->params.penalises() || spec_->rules != nullptr || !spec_->banned.empty()) {
    row_.assign(logits.begin(), logits.end());
    logits = row_;
    penalise();
    add_bias();
    if (exclude != Exclude::kFirm || !masked) {
      exclude_all_but_allowed();
    }
    if (exclude != Exclude::kFirm) {
      exclude_bad_words();
    }
    if (exclude == Exclude::kAll) {
      exclude_banned();
    }
  }
  return masked ? gather_masked(logits) : EditedRow{logits, {}};
}

void LogitEditor::exclude(TokenId token) {
  if (exists(token)) {
    row_[static_cast<std::size_t>(token)] = kNeverLogit;
  }
}

// Repetition penalty of CTRL (Keskar et al. 2019, section 4.1). Negative logits are multiplied, as
// in transformers, so that they shrink too.
void LogitEditor::penalise() {
  const SamplingParams& params = spec_->params;
  if (!params.penalises()) {
    return;
  }
  counts_.resize(static_cast<std::size_t>(vocab_));
  for (const TokenId token : sequence_) {
    check(exists(token), "a sequence's tokens are in the vocabulary");
    const auto id = static_cast<std::size_t>(token);
    if (counts_[id] == 0) {
      counts_[id] = kRepeated;
      float& logit = row_[id];
      logit = logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
  }
  for (const TokenId token : answer()) {
    ++counts_[static_cast<std::size_t>(token)];
  }
  for (const TokenId token : sequence_) {
    std::uint32_t& count = counts_[static_cast<std::size_t>(token)];
    if (const std::uint32_t times = count & ~kRepeated; times > 0) {
      row_[static_cast<std::size_t>(token)] -=
          params.presence_penalty + params.frequency_penalty * static_cast<float>(times);
    }
    count = 0;
  }
}

void LogitEditor::add_bias() {
  if (spec_->rules == nullptr) {
    return;
  }
  for (const TokenBias& bias : spec_->rules->bias) {
    if (exists(bias.token)) {
      row_[static_cast<std::size_t>(bias.token)] += bias.bias;
    }
  }
}

void LogitEditor::exclude_all_but_allowed() {
  if (spec_->rules == nullptr || spec_->rules->allowed.empty()) {
    return;
  }
  const std::vector<TokenId>& allowed = spec_->rules->allowed;
  kept_.clear();
  for (const TokenId token : allowed) {
    kept_.push_back(exists(token) ? row_[static_cast<std::size_t>(token)] : kNeverLogit);
  }
  std::fill(row_.begin(), row_.end(), kNeverLogit);
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (exists(allowed[i])) {
      row_[static_cast<std::size_t>(allowed[i])] = kept_[i];
    }
  }
}

// Excludes the last token of a run of bad words if the answer ends with the others.
void LogitEditor::exclude_bad_words() {
  if (spec_->rules == nullptr) {
    return;
  }
  const std::span<const TokenId> so_far = answer();
  for (const std::vector<TokenId>& word : spec_->rules->bad_words) {
    if (word.empty() || word.size() - 1 > so_far.size()) {
      continue;
    }
    const auto end = so_far.last(word.size() - 1);
    if (std::equal(end.begin(), end.end(), word.begin())) {
      exclude(word.back());
    }
  }
}

void LogitEditor::exclude_banned() {
  for (const TokenId token : spec_->banned) {
    exclude(token);
  }
}

EditedRow LogitEditor::gather_masked(std::span<const float> logits) {
  gathered_.resize(logits.size());
  tokens_.resize(logits.size());
  std::size_t count = 0;
  for (std::size_t word = 0; word < mask_.size(); ++word) {
    const std::size_t first = word * kWordBits;
    const std::size_t end = std::min(first + kWordBits, logits.size());
    if (mask_[word] == ~std::uint64_t{0}) {
      for (std::size_t id = first; id < end; ++id, ++count) {
        gathered_[count] = logits[id];
        tokens_[count] = static_cast<TokenId>(id);
      }
      continue;
    }
    for (std::uint64_t bits = mask_[word]; bits != 0; bits &= bits - 1) {
      const std::size_t id = first + static_cast<std::size_t>(std::countr_zero(bits));
      if (id >= end) {
        break;
      }
      gathered_[count] = logits[id];
      tokens_[count++] = static_cast<TokenId>(id);
    }
  }
  return {std::span(gathered_).first(count), std::span(tokens_).first(count)};
}

TokenId LogitEditor::last_resort() const {
  if (spec_->constraint != nullptr) {
    for (std::size_t word = 0; word < mask_.size(); ++word) {
      const auto token = static_cast<TokenId>(
          word * kWordBits + static_cast<std::size_t>(std::countr_zero(mask_[word])));
      if (mask_[word] != 0 && exists(token)) {
        return token;
      }
    }
  } else if (spec_->rules != nullptr) {
    for (const TokenId token : spec_->rules->allowed) {
      if (exists(token)) {
        return token;
      }
    }
  }
  return 0;
}

}  // namespace protean

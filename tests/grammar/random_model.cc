#include "tests/grammar/random_model.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace protean {

using grammar::Move;
using grammar::SetId;

RandomModel::RandomModel(const Tokenizer& tokenizer, const grammar::Automaton& automaton)
    : tokenizer_(&tokenizer), automaton_(&automaton), stacks_(automaton) {
  measure();
}

void RandomModel::measure() {
  to_final_.assign(automaton_->states(), kFar);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = automaton_->states(); i-- > 0;) {
      std::uint64_t best = automaton_->is_final[i] != 0 ? 0 : kFar;
      for (auto e = automaton_->edge_begin[i]; e < automaton_->edge_begin[i + 1]; ++e) {
        best = std::min(best, 1 + to_final_[automaton_->edges[e].to]);
      }
      for (auto m = automaton_->move_begin[i]; m < automaton_->move_begin[i + 1]; ++m) {
        const Move& move = automaton_->moves[m];
        const bool call = move.kind == Move::Kind::kCall;
        best = std::min(best, to_final_[move.to] + (call ? to_final_[move.argument] : 0));
      }
      if (best < to_final_[i]) {
        to_final_[i] = best;
        changed = true;
      }
    }
  }
}

std::uint64_t RandomModel::distance(SetId set) {
  if (set == grammar::kNoStacks) {
    return kFar;
  }
  if (const auto it = distances_.find(set); it != distances_.end()) {
    return it->second;
  }
  std::uint64_t best = kFar;
  for (const grammar::Frame& frame : stacks_.frames(set)) {
    best = std::min(best, frame.state == grammar::kEndState
                              ? 0
                              : to_final_[frame.state] + distance(frame.below));
  }
  return distances_[set] = best;
}

SetId RandomModel::read(SetId set, TokenId token) {
  for (const char byte : tokenizer_->bytes(token)) {
    set = stacks_.step(set, static_cast<std::uint8_t>(byte));
  }
  return set;
}

std::vector<TokenId> RandomModel::allowed(std::span<const std::uint64_t> mask) const {
  std::vector<TokenId> tokens;
  for (std::size_t word = 0; word < mask.size(); ++word) {
    for (std::uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      tokens.push_back(static_cast<TokenId>(word * 64) + std::countr_zero(bits));
    }
  }
  return tokens;
}

// Prefers the longer of two tokens that are as near: it reaches minimal lengths sooner.
TokenId RandomModel::nearest(SetId now, const std::vector<TokenId>& tokens) {
  std::tuple<std::uint64_t, std::size_t, TokenId> best{kFar * 2, 0, tokens.front()};
  for (const TokenId token : tokens) {
    if (tokenizer_->bytes(token).empty()) {
      return token;
    }
    best =
        std::min(best, {distance(read(now, token)), 4096 - tokenizer_->bytes(token).size(), token});
  }
  return std::get<2>(best);
}

// Now and then takes a closing bracket, because distance() ignores the least numbers of loops and
// may never leave an object to begin the next item that must come.
TokenId RandomModel::towards_end(SetId now, const std::vector<TokenId>& tokens,
                                 std::mt19937& random) {
  const auto closing = std::find_if(tokens.begin(), tokens.end(), [this](TokenId token) {
    const std::string_view bytes = tokenizer_->bytes(token);
    return bytes == "}" || bytes == "]";
  });
  return closing != tokens.end() && random() % 4 == 0 ? *closing : nearest(now, tokens);
}

RandomModel::Answer RandomModel::write(TokenConstraint& constraint, std::mt19937& random,
                                       int patience, int most) {
  Answer answer;
  std::vector<TokenId> ids;
  std::vector<std::uint64_t> mask(token_mask_words(tokenizer_->vocab_size()));
  SetId now = stacks_.start();
  for (int n = 0; n < most; ++n) {
    constraint.allowed_after(ids, mask);
    const std::vector<TokenId> tokens = allowed(mask);
    if (tokens.empty()) {
      answer.broken = "no token is allowed";
      return answer;
    }
    const TokenId token =
        n < patience ? tokens[random() % tokens.size()] : towards_end(now, tokens, random);
    if (tokenizer_->bytes(token).empty()) {
      answer.ended = true;
      answer.broken = stacks_.at_end(now) ? "" : "the end is allowed where it is not";
      return answer;
    }
    now = read(now, token);
    ids.push_back(token);
    answer.text += tokenizer_->bytes(token);
    if (now == grammar::kNoStacks) {
      answer.broken = "a token is allowed that leads nowhere";
      return answer;
    }
  }
  return answer;
}

}  // namespace protean

#pragma once

#include <random>
#include <string>
#include <vector>

#include "contract/token_constraint.h"
#include "grammar/automaton.h"
#include "grammar/stack_sets.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Writes answers by drawing allowed tokens at random. After `patience` tokens it takes tokens that
// bring the end nearer, as a trained model would.
class RandomModel {
 public:
  RandomModel(const Tokenizer& tokenizer, const grammar::Automaton& automaton);

  struct Answer {
    std::string text;
    bool ended = false;  // within `most` tokens
    std::string broken;  // empty, or the error in the mask
  };
  Answer write(TokenConstraint& constraint, std::mt19937& random, int patience, int most);

 private:
  static constexpr std::uint64_t kFar = std::uint64_t{1} << 40;

  std::vector<TokenId> allowed(std::span<const std::uint64_t> mask) const;
  TokenId towards_end(grammar::SetId now, const std::vector<TokenId>& tokens, std::mt19937& random);
  TokenId nearest(grammar::SetId now, const std::vector<TokenId>& tokens);
  grammar::SetId read(grammar::SetId set, TokenId token);
  std::uint64_t distance(grammar::SetId set);
  void measure();

  const Tokenizer* tokenizer_;
  const grammar::Automaton* automaton_;
  grammar::StackSets stacks_;
  std::vector<std::uint64_t> to_final_;  // fewest bytes from a state to its frame's end
  std::unordered_map<grammar::SetId, std::uint64_t> distances_;
};

}  // namespace protean

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tokenizer/bpe.h"

namespace protean {

using TokenIndex = std::unordered_map<std::string_view, TokenId>;

// Adds the characters that are tokens, from which merging starts. For models of characters.
void add_characters(const TokenIndex& tokens, BpeModel& model);

// Adds merges as a file lists them: the place in the list is the rank. Fails with kCorrupt if a
// merge names an unknown token.
Status add_listed_merges(std::span<const std::pair<std::string_view, std::string_view>> merges,
                         const TokenIndex& tokens, BpeModel& model);

struct RankedToken {
  std::string_view text;
  TokenId id;
  std::uint32_t rank;
};

// Adds every pair of tokens that makes up a third, with the third's rank. SentencePiece (by score)
// and tiktoken (by rank) look up these pairs while merging. Equal ranks stay equal, so that the
// leftmost pair wins. Precondition: model.vocabulary_size is set.
Status add_ranked_merges(std::span<const RankedToken> ranked, BpeModel& model);

}  // namespace protean

#pragma once

#include "tokenizer/tokenizer.h"

namespace protean {

// The special tokens of models that fill in text between a prefix and a suffix; -1: none.
struct InfillTokens {
  TokenId prefix = -1;
  TokenId suffix = -1;
  TokenId middle = -1;
  TokenId repository = -1;  // before the name of a repository
  TokenId file = -1;        // before the name of a file
  TokenId pad = -1;

  bool complete() const { return prefix >= 0 && suffix >= 0 && middle >= 0; }
};

// Finds the tokens by the names that known model families give them.
InfillTokens find_infill_tokens(const Tokenizer& tokenizer);

}  // namespace protean

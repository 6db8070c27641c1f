#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace protean {

inline constexpr TokenId kLargestVocabulary = 1 << 22;  // far above any real one

// Everything a tokenizer does, as data; each file format is a way to fill this in. Text goes
// through it top down: added tokens are taken out, the rest is normalized, cut into pieces and
// merged.
struct Pipeline {
  struct Token {
    std::string text;   // as the vocabulary writes it
    std::string bytes;  // what it stands for; nothing for a special token
  };

  std::string description;  // without the number of tokens
  std::vector<Token> tokens;
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  std::vector<TokenId> prefix;  // of a text, with add_special
  std::vector<TokenId> suffix;
  TokenId bos = -1;
  TokenId eos = -1;
  bool strips_leading_space = false;
};

// Precondition: every id in pipeline is a token of it.
std::unique_ptr<Tokenizer> make_pipeline_tokenizer(Pipeline pipeline);

}  // namespace protean

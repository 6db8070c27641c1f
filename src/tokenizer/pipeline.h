#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram.h"

namespace protean {

inline constexpr TokenId kLargestVocabulary = 1 << 22;  // far more than any real one

// A tokenizer as data, which each file format fills in. Encoding takes out the added tokens, then
// normalizes the rest, cuts it into pieces and merges these.
struct Pipeline {
  struct Token {
    std::string text;   // as the vocabulary writes it
    std::string bytes;  // the bytes it stands for; none for a special token
    friend bool operator==(const Token&, const Token&) = default;
  };

  std::string description;  // without the number of tokens
  std::vector<Token> tokens;
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  std::optional<UnigramModel> unigram;  // takes the place of `model`
  std::vector<TokenId> prefix;          // before a text, with add_special
  std::vector<TokenId> suffix;
  TokenId bos = -1;
  TokenId eos = -1;
  bool strips_leading_space = false;

  friend bool operator==(const Pipeline&, const Pipeline&) = default;
};

// Precondition: every id in `pipeline` is one of its tokens.
std::unique_ptr<Tokenizer> make_pipeline_tokenizer(Pipeline pipeline);

}  // namespace protean

#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace protean {

// GPT-2's pattern for words, which tokenizer.json's ByteLevel applies with use_regex.
extern const std::string_view kGpt2Words;

// The pre-tokenizer that a name in GGUF's tokenizer.ggml.pre stands for. For byte-level
// vocabularies only.
struct KnownPreTokenizer {
  PreTokenizer pre_tokenizer;
  Normalizer normalizer;
  bool whole_pieces_first = false;  // see BpeModel::whole_pieces
};

Result<KnownPreTokenizer> known_pre_tokenizer(std::string_view name);

// A known pre-tokenizer as text: regular expressions that cut one after the other.
struct PreTokenizerPatterns {
  std::vector<std::string_view> patterns;
  bool nfc = false;  // text is normalised first
  bool whole_pieces_first = false;
};

Result<PreTokenizerPatterns> known_patterns(std::string_view name);

}  // namespace protean

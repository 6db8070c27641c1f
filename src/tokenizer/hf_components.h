#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace protean {

// The components of a tokenizer.json other than its model. Each is an object with a "type". An
// unknown type is an error that names it, since skipping it would encode wrongly.

Normalizer read_normalizer(const boost::json::value* value, Complaint& complaint);

struct HfPreTokenizer {
  PreTokenizer pre_tokenizer;
  bool byte_level = false;  // the vocabulary is written in the byte alphabet
};
HfPreTokenizer read_pre_tokenizer(const boost::json::value* value, Complaint& complaint);

struct HfDecoder {
  bool byte_level = false;
  Normalizer replacements;  // applied to a token's text
  bool byte_fallback = false;
  bool strips_leading_space = false;
};
HfDecoder read_decoder(const boost::json::value* value, Complaint& complaint);

// Tokens before and after a text. Without a value the file does not state them, and
// tokenizer_config.json may.
struct HfFrame {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};
std::optional<HfFrame> read_post_processor(const boost::json::value* value, Complaint& complaint);

}  // namespace protean

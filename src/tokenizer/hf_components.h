#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "tokenizer/json_fields.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace protean {

// The parts of a tokenizer.json other than its model. Each is an object with a "type"; a type that
// Protean does not know is a complaint with its name, since skipping it would encode wrongly.

Normalizer read_normalizer(const boost::json::value* value, Complaint& complaint);

struct HfPreTokenizer {
  PreTokenizer pre_tokenizer;
  bool byte_level = false;  // the vocabulary is in the byte alphabet
};
HfPreTokenizer read_pre_tokenizer(const boost::json::value* value, Complaint& complaint);

struct HfDecoder {
  bool byte_level = false;
  Normalizer replacements;  // in a token's text
  bool byte_fallback = false;
  bool strips_leading_space = false;
};
HfDecoder read_decoder(const boost::json::value* value, Complaint& complaint);

// Tokens before and after a text. Empty: the file does not say (then tokenizer_config.json may).
struct HfFrame {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};
std::optional<HfFrame> read_post_processor(const boost::json::value* value, Complaint& complaint);

}  // namespace protean

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace protean {

// A tokenizer that is a list of the tokens' bytes. The last token is empty: end of sequence.
class TokenList : public Tokenizer {
 public:
  explicit TokenList(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
    tokens_.emplace_back();
  }

  // All bytes, and pieces that are frequent in JSON, some of them cut within a character.
  static TokenList json_pieces() {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.emplace_back(1, static_cast<char>(byte));
    }
    for (const char* piece :
         {"{\"",      "\":",      "\": ",  "\",",       "\", \"",   "\"}",
          "\"}]",     "}}",       "]}",    "},{",       "{}",       "[]",
          "[[",       "]]",       ",\"",   "\n  ",      "\n    ",   "  ",
          "\n\n",     "true",     "false", "null",      "tr",       "alse",
          "12",       "345",      "0.",    ".5",        "e+",       "-1",
          "name",     "id",       " the",  "the ",      "a\"",      "b\":1",
          "\\n",      "\\u",      "\\\"",  "\\u00e9",   "\\ud83d",  "\\ude00",
          "\xC3\xA9", "\xE2\x82", "\xAC",  "\xF0\x9F",  "\x98\x80", "\xE2\x82\xAC\"",
          "1]",       "1,",       "abc",   "ab\",\"cd", "2024-",    "-01",
          "@",        ".com",     "http",  "://",       "xyz ",     "\r\n",
          "\t"}) {
      tokens.emplace_back(piece);
    }
    return TokenList(std::move(tokens));
  }

  std::vector<TokenId> encode(std::string_view, const EncodeOptions&) const override { return {}; }
  std::string_view bytes(TokenId id) const override {
    return tokens_[static_cast<std::size_t>(id)];
  }
  std::string_view token_text(TokenId id) const override { return bytes(id); }
  int vocab_size() const override { return static_cast<int>(tokens_.size()); }
  TokenId bos() const override { return -1; }
  TokenId eos() const override { return vocab_size() - 1; }
  TokenId find_special(std::string_view) const override { return -1; }
  bool strips_leading_space() const override { return false; }
  std::string description() const override { return "a list"; }

 private:
  std::vector<std::string> tokens_;
};

}  // namespace protean

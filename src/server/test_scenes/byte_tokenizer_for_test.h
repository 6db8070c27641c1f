#pragma once

#include <array>
#include <string>

#include "tokenizer/tokenizer.h"

namespace protean {

// A tokenizer whose tokens are bytes; 256 is BOS and 257 EOS.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kBos = 256;
  static constexpr TokenId kEos = 257;

  explicit ByteTokenizer(bool has_bos = true) : has_bos_(has_bos) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<char>(i);
    }
  }
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<TokenId> ids;
    if (options.add_special && has_bos_) {
      ids.push_back(kBos);
    }
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }
  std::string_view bytes(TokenId id) const override {
    return id < 256 ? std::string_view(&bytes_[static_cast<std::size_t>(id)], 1)
                    : std::string_view();
  }
  std::string_view token_text(TokenId id) const override {
    return id == kBos ? "<s>" : id == kEos ? "</s>" : bytes(id);
  }
  int vocab_size() const override { return 258; }
  TokenId bos() const override { return has_bos_ ? kBos : -1; }
  TokenId eos() const override { return kEos; }
  TokenId find_special(std::string_view) const override { return -1; }
  bool strips_leading_space() const override { return false; }
  std::string description() const override { return "bytes"; }

 private:
  const bool has_bos_;
  std::array<char, 256> bytes_{};
};

}  // namespace protean

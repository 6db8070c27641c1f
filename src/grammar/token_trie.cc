#include "grammar/token_trie.h"

#include <algorithm>

#include "base/check.h"

namespace protean::grammar {

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, TokenId>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  nodes_.push_back({});
  std::vector<std::uint32_t> path{0};  // nodes from the root to the last token
  std::string_view last;
  const auto close_to = [&](std::size_t depth) {
    while (path.size() > depth + 1) {
      nodes_[path.back()].skip = static_cast<std::uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  for (const auto& [bytes, id] : tokens) {
    check(!bytes.empty() && bytes.size() < 0xffff, "a token in the trie has 1 to 65534 bytes");
    const auto common = static_cast<std::size_t>(
        std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end()).first - last.begin());
    close_to(common);
    for (std::size_t i = common; i < bytes.size(); ++i) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({.token_begin = static_cast<std::uint32_t>(tokens_.size()),
                        .depth = static_cast<std::uint16_t>(i + 1),
                        .byte = static_cast<std::uint8_t>(bytes[i])});
    }
    deepest_ = std::max(deepest_, static_cast<std::uint16_t>(bytes.size()));
    tokens_.push_back(id);
    last = bytes;
  }
  close_to(0);
  nodes_[0].skip = static_cast<std::uint32_t>(nodes_.size());
  nodes_.push_back({.token_begin = static_cast<std::uint32_t>(tokens_.size())});
}

}  // namespace protean::grammar

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace protean::grammar {

// Tokens by their bytes. Nodes lie in depth-first order, so that a walk is a loop and the nodes
// beneath node n are those between n and its skip. Node 0 is the empty text. Immutable.
class TokenTrie {
 public:
  struct Node {
    std::uint32_t skip = 0;         // the next node that is not beneath this one
    std::uint32_t token_begin = 0;  // the node's tokens end where the next node's begin
    std::uint16_t depth = 0;        // in bytes
    std::uint8_t byte = 0;
  };

  // `tokens` have at least one byte and at most 65534.
  explicit TokenTrie(std::vector<std::pair<std::string_view, TokenId>> tokens);

  const Node& node(std::uint32_t n) const { return nodes_[n]; }
  bool has_children(std::uint32_t n) const { return nodes_[n].skip > n + 1; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(nodes_.size()) - 1; }
  std::span<const TokenId> tokens(std::uint32_t n) const {
    return std::span(tokens_).subspan(nodes_[n].token_begin,
                                      nodes_[n + 1].token_begin - nodes_[n].token_begin);
  }
  std::uint16_t deepest() const { return deepest_; }

 private:
  std::vector<Node> nodes_;  // ends with a node past the last one
  std::vector<TokenId> tokens_;
  std::uint16_t deepest_ = 0;
};

}  // namespace protean::grammar

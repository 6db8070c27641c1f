#include "tokenizer/unigram.h"

#include <algorithm>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace protean {

PieceTrie PieceTrie::build(std::vector<Piece> pieces) {
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.text < b.text; });
  // The pieces of a node's subtree are next to each other. Nodes are made level by level, so that
  // the children of one are too.
  struct Range {
    std::size_t begin;
    std::size_t end;
  };
  PieceTrie trie;
  std::vector<Range> ranges{{0, pieces.size()}};
  std::size_t depth = 0;
  for (std::size_t level = 0; level < trie.nodes_.size(); ++depth) {
    const std::size_t level_end = trie.nodes_.size();
    for (std::size_t node = level; node < level_end; ++node) {
      std::size_t at = ranges[node].begin;
      const std::size_t end = ranges[node].end;
      for (; at < end && pieces[at].text.size() == depth; ++at) {
        trie.nodes_[node].token = pieces[at].id;
      }
      trie.nodes_[node].first_child = static_cast<std::uint32_t>(trie.nodes_.size());
      while (at < end) {
        const char byte = pieces[at].text[depth];
        std::size_t next = at;
        while (next < end && pieces[next].text[depth] == byte) {
          ++next;
        }
        trie.nodes_.push_back({.byte = static_cast<std::uint8_t>(byte)});
        ranges.push_back({at, next});
        ++trie.nodes_[node].children;
        at = next;
      }
    }
    level = level_end;
  }
  return trie;
}

std::uint32_t PieceTrie::child(std::uint32_t node, char byte) const {
  const auto wanted = static_cast<std::uint8_t>(byte);
  const auto begin = nodes_.begin() + nodes_[node].first_child;
  const auto end = begin + nodes_[node].children;
  const auto found = std::lower_bound(
      begin, end, wanted, [](const Node& child, std::uint8_t value) { return child.byte < value; });
  return found == end || found->byte != wanted ? kNoNode
                                               : static_cast<std::uint32_t>(found - nodes_.begin());
}

TokenId PieceTrie::find(std::string_view text) const {
  std::uint32_t node = kRoot;
  for (const char byte : text) {
    node = child(node, byte);
    if (node == kNoNode) {
      return -1;
    }
  }
  return token(node);
}

void UnigramEncoder::encode(std::string_view text) {
  check(text.size() < (std::size_t{1} << 31), "a piece of text is shorter than 2 GiB");
  find_best(text);
  taken_.clear();
  for (std::size_t end = text.size(); end > 0;) {
    taken_.push_back(best_[end]);
    end = static_cast<std::size_t>(best_[end].begin);
  }
  for (std::size_t i = taken_.size(); i-- > 0;) {
    const auto begin = static_cast<std::size_t>(taken_[i].begin);
    if (taken_[i].token >= 0 && taken_[i].token != model_->unknown) {
      out_->push_back(taken_[i].token);
      continue;
    }
    while (i > 0 && (taken_[i - 1].token < 0 || taken_[i - 1].token == model_->unknown)) {
      --i;  // runs of unknown characters are one
    }
    const std::size_t end = i == 0 ? text.size() : static_cast<std::size_t>(taken_[i - 1].begin);
    emit_unknown(text.substr(begin, end - begin));
  }
}

// Keeps the first one of several ways with equal scores.
void UnigramEncoder::offer(std::size_t end, const Best& candidate) {
  Best& best = best_[end];
  if (best.begin < 0 || candidate.score > best.score) {
    best = candidate;
    if (model_->program == UnigramModel::Program::kSentencePiece) {
      best.score = static_cast<float>(best.score);
    }
  }
}

void UnigramEncoder::find_best(std::string_view text) {
  best_.assign(text.size() + 1, {});
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t character = static_cast<std::size_t>(utf8_step(text.substr(begin)).bytes);
    const double so_far = best_[begin].score;
    const auto from = static_cast<std::int32_t>(begin);
    bool is_piece = false;
    std::uint32_t node = PieceTrie::kRoot;
    for (std::size_t end = begin; end < text.size();) {
      node = model_->trie.child(node, text[end++]);
      if (node == PieceTrie::kNoNode) {
        break;
      }
      if (const TokenId token = model_->trie.token(node); token >= 0) {
        offer(end, {so_far + model_->scores[static_cast<std::size_t>(token)], from, token});
        is_piece = is_piece || end - begin == character;
      }
    }
    if (!is_piece) {
      offer(begin + character, {so_far + model_->unknown_score, from, -1});
    }
    begin += character;
  }
}

void UnigramEncoder::emit_unknown(std::string_view text) {
  if (model_->program == UnigramModel::Program::kTokenizers) {
    if (const TokenId whole = model_->trie.find(text); whole >= 0) {
      out_->push_back(whole);
      return;
    }
  }
  const auto token_of = [this](char c) { return model_->bytes[static_cast<unsigned char>(c)]; };
  if (std::all_of(text.begin(), text.end(), [&](char c) { return token_of(c) >= 0; })) {
    std::transform(text.begin(), text.end(), std::back_inserter(*out_), token_of);
  } else if (model_->unknown >= 0) {
    out_->push_back(model_->unknown);
  }
}

}  // namespace protean

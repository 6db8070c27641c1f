#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace protean {

// A set of texts that finds those that a text begins with. A node's children are next to each
// other, in the order of their bytes.
class PieceTrie {
 public:
  struct Piece {
    std::string_view text;  // not empty
    TokenId id = -1;
  };
  // Keeps the last one of pieces with equal texts.
  static PieceTrie build(std::vector<Piece> pieces);

  static constexpr std::uint32_t kRoot = 0;
  static constexpr std::uint32_t kNoNode = 0xffffffff;
  std::uint32_t child(std::uint32_t node, char byte) const;
  TokenId token(std::uint32_t node) const { return nodes_[node].token; }  // -1: no piece ends here
  TokenId find(std::string_view text) const;                              // -1 if there is none
  friend bool operator==(const PieceTrie&, const PieceTrie&) = default;

 private:
  struct Node {
    std::uint32_t first_child = 0;
    std::uint16_t children = 0;
    std::uint8_t byte = 0;
    TokenId token = -1;
    friend bool operator==(const Node&, const Node&) = default;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

// The data of a Unigram model: each piece has a log-probability, and a text is cut into the pieces
// that are likeliest together.
struct UnigramModel {
  // Two programs compute it, with slight differences that change tokens.
  enum class Program {
    kSentencePiece,  // sums in float; GGUF and tokenizer.model
    kTokenizers,     // sums in double and looks joined unknown characters up; tokenizer.json
  };
  Program program = Program::kSentencePiece;
  PieceTrie trie;
  std::vector<double> scores;        // by token
  double unknown_score = 0.0;        // score of a character that is no piece
  TokenId unknown = -1;              // -1: text without a token is left out
  std::array<TokenId, 256> bytes{};  // tokens that stand for a byte of unknown text; -1: none

  UnigramModel() { bytes.fill(-1); }
  friend bool operator==(const UnigramModel&, const UnigramModel&) = default;
};

// Returns the score of an unknown character, from the lowest score of a piece.
inline double unknown_piece_score(double lowest) {
  return lowest - 10.0;
}

// Encodes pieces of text and appends their ids to one list. Owns scratch memory, so each thread
// needs its own. `model` and `out` must outlive it.
class UnigramEncoder {
 public:
  UnigramEncoder(const UnigramModel& model, std::vector<TokenId>& out)
      : model_(&model), out_(&out) {}

  // Precondition: text is shorter than 2 GiB.
  void encode(std::string_view text);

 private:
  // The best way to cut the text up to a place: its score and its last piece.
  struct Best {
    double score = 0.0;
    std::int32_t begin = -1;  // -1: no way leads here
    TokenId token = -1;
  };

  void find_best(std::string_view text);
  void offer(std::size_t end, const Best& candidate);
  void emit_unknown(std::string_view text);

  const UnigramModel* model_;
  std::vector<TokenId>* out_;
  std::vector<Best> best_;   // by the end of the last piece
  std::vector<Best> taken_;  // the last pieces of the way, the last one first
};

}  // namespace protean

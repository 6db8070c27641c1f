#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tokenizer/pair_table.h"

namespace protean {

// The data for merging. Represents three kinds of vocabulary: listed merges (GPT-2,
// tokenizer.json), scores (SentencePiece) and ranks of whole tokens (tiktoken). The pair with the
// lowest rank merges first, and of equal ones the leftmost.
struct BpeModel {
  bool byte_symbols = true;  // merging starts from bytes; if false, from characters
  // The token of each byte, or -1. Merging starts from these, or a character without a token falls
  // back to them if all its bytes have one.
  std::array<TokenId, 256> byte_tokens;
  // (code point, 0) -> symbol. Symbols from vocabulary_size on are characters that occur inside
  // tokens but are not tokens. orphans[symbol - vocabulary_size] is their text.
  PairTable characters;
  std::vector<std::string> orphans;
  std::int32_t vocabulary_size = 0;
  PairTable merges;  // (left, right) -> (rank, merged symbol)
  // (last character, first character) of every pair that can merge. Long text is cut where this has
  // no entry, since no merge crosses such a place. For characters only.
  PairTable joinable;
  TokenId unknown = -1;  // -1: text without a token is left out
  bool fuse_unknown = true;
  // Pieces that become one token without merging (Llama 3).
  std::unordered_map<std::string, TokenId> whole_pieces;
  std::unordered_set<TokenId> unused;  // used by merges, never emitted

  BpeModel() { byte_tokens.fill(-1); }
  friend bool operator==(const BpeModel&, const BpeModel&) = default;
};

// Encodes pieces and appends their ids to one list. Owns scratch memory, so each thread needs its
// own. `model` and `out` must outlive it. Takes O(n log n) in a piece's length.
class BpeEncoder {
 public:
  BpeEncoder(const BpeModel& model, std::vector<TokenId>& out) : model_(&model), out_(&out) {}

  // Precondition: piece is shorter than 2 GiB.
  void encode(std::string_view piece);

 private:
  struct Symbol {
    std::int32_t id;  // -1: a character that is in no token; kGone: merged into the symbol before
    std::int32_t previous;
    std::int32_t next;
    std::uint32_t begin;  // place of its text, unless a symbol was merged into it
    std::uint32_t bytes;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t left;  // index into symbols_
    std::int32_t left_id;
    std::int32_t right_id;
    std::int32_t result;
    bool operator<(
        const Candidate& other) const {  // for std::push_heap(), which keeps the largest on top
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  void encode_bytes(std::string_view piece);
  void encode_characters(std::string_view piece);
  void append_symbol(std::int32_t id, std::size_t begin, std::size_t bytes);
  void merge_and_emit(std::string_view piece);
  void consider(std::int32_t left);
  void merge(const Candidate& candidate);
  void emit(const Symbol& symbol, std::string_view piece);
  void emit_token(std::int32_t id, std::string_view text);
  void emit_without_token(std::string_view text);

  const BpeModel* model_;
  std::vector<TokenId>* out_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::unordered_map<TokenId, std::pair<TokenId, TokenId>>
      made_from_;  // the parts of unused tokens
  bool after_unknown_ = false;
};

}  // namespace protean

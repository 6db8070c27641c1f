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

// What merging needs to know. Three kinds of vocabulary become this one table: listed merges
// (GPT-2, tokenizer.json), scores (SentencePiece) and ranks of whole tokens (tiktoken); of the
// pairs present, the lowest rank merges first, and the leftmost of equals.
struct BpeModel {
  bool byte_symbols = true;  // merging starts from bytes, else from characters
  // A byte's own token, -1 if none: the starting symbols, or what a character without a token
  // falls back to (all its bytes must have one).
  std::array<TokenId, 256> byte_tokens;
  // (code point, 0) -> symbol. Symbols from vocabulary_size up are characters that occur inside
  // tokens but are none themselves; orphans[symbol - vocabulary_size] is their text.
  PairTable characters;
  std::vector<std::string> orphans;
  std::int32_t vocabulary_size = 0;
  PairTable merges;  // (left, right) -> (rank, merged symbol)
  // (last character, first character) of every mergeable pair. No merge ever crosses a place where
  // this has no entry, so long text is cut there, exactly. Characters only.
  PairTable joinable;
  TokenId unknown = -1;  // -1: what has no token is left out
  bool fuse_unknown = true;
  // A piece that is a token as a whole is not built from merges (Llama 3).
  std::unordered_map<std::string, TokenId> whole_pieces;
  std::unordered_set<TokenId> unused;  // may be merged through, never emitted

  BpeModel() { byte_tokens.fill(-1); }
};

// Encodes pieces one after the other, appending to one list. Holds scratch memory, so one per
// thread; model and out must outlive it. O(n log n) in a piece's length.
class BpeEncoder {
 public:
  BpeEncoder(const BpeModel& model, std::vector<TokenId>& out) : model_(&model), out_(&out) {}

  // Precondition: piece is shorter than 2 GiB.
  void encode(std::string_view piece);

 private:
  struct Symbol {
    std::int32_t id;  // -1: a character that is in no token; kGone: merged into the one before
    std::int32_t previous;
    std::int32_t next;
    std::uint32_t begin;  // of its text, as long as nothing was merged into it
    std::uint32_t bytes;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t left;  // index into symbols_
    std::int32_t left_id;
    std::int32_t right_id;
    std::int32_t result;
    bool operator<(const Candidate& other) const {  // std::push_heap keeps the largest on top
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
  std::unordered_map<TokenId, std::pair<TokenId, TokenId>> made_from_;  // of unused tokens
  bool after_unknown_ = false;
};

}  // namespace protean

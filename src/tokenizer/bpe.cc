#include "tokenizer/bpe.h"

#include <algorithm>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace protean {
namespace {

constexpr std::int32_t kNone = -1;
constexpr std::int32_t kGone = -2;

}  // namespace

void BpeEncoder::encode(std::string_view piece) {
  check(piece.size() < (std::size_t{1} << 31), "a piece of text is shorter than 2 GiB");
  after_unknown_ = false;
  if (!model_->whole_pieces.empty()) {
    const auto whole = model_->whole_pieces.find(std::string(piece));
    if (whole != model_->whole_pieces.end()) {
      out_->push_back(whole->second);
      return;
    }
  }
  if (model_->byte_symbols) {
    encode_bytes(piece);
  } else {
    encode_characters(piece);
  }
}

void BpeEncoder::encode_bytes(std::string_view piece) {
  for (std::size_t at = 0; at < piece.size(); ++at) {
    append_symbol(model_->byte_tokens[static_cast<unsigned char>(piece[at])], at, 1);
  }
  merge_and_emit(piece);
}

void BpeEncoder::encode_characters(std::string_view piece) {
  std::int32_t last = -1;
  for (std::size_t at = 0; at < piece.size();) {
    const Utf8Step step = utf8_step(piece.substr(at));
    if (model_->joinable.find(last, step.code_point) == nullptr) {
      merge_and_emit(piece);
    }
    last = step.code_point;
    const PairTable::Entry* known =
        step.code_point < 0 ? nullptr : model_->characters.find(step.code_point, 0);
    append_symbol(known == nullptr ? kNone : known->result, at, step.bytes);
    at += step.bytes;
  }
  merge_and_emit(piece);
}

void BpeEncoder::append_symbol(std::int32_t id, std::size_t begin, std::size_t bytes) {
  const auto index = static_cast<std::int32_t>(symbols_.size());
  if (index > 0) {
    symbols_.back().next = index;
  }
  symbols_.push_back(
      {id, index - 1, kNone, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(bytes)});
}

void BpeEncoder::merge_and_emit(std::string_view piece) {
  if (symbols_.size() > 1) {
    const auto last = static_cast<std::int32_t>(symbols_.size()) - 1;
    for (std::int32_t left = 0; left < last; ++left) {
      consider(left);
    }
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      const Candidate best = heap_.back();
      heap_.pop_back();
      merge(best);
    }
  }
  for (const Symbol& symbol : symbols_) {
    if (symbol.id != kGone) {
      emit(symbol, piece);
    }
  }
  symbols_.clear();
}

void BpeEncoder::consider(std::int32_t left) {
  const Symbol& symbol = symbols_[left];
  if (symbol.next == kNone) {
    return;
  }
  const std::int32_t right_id = symbols_[symbol.next].id;
  if (symbol.id < 0 || right_id < 0) {
    return;
  }
  if (const PairTable::Entry* found = model_->merges.find(symbol.id, right_id)) {
    heap_.push_back({found->rank, left, symbol.id, right_id, found->result});
    std::push_heap(heap_.begin(), heap_.end());
  }
}

void BpeEncoder::merge(const Candidate& candidate) {
  Symbol& left = symbols_[candidate.left];
  if (left.id != candidate.left_id || left.next == kNone ||
      symbols_[left.next].id != candidate.right_id) {
    return;  // one of the two has been merged with another symbol
  }
  Symbol& right = symbols_[left.next];
  left.id = candidate.result;
  left.next = right.next;
  right.id = kGone;
  if (left.next != kNone) {
    symbols_[left.next].previous = candidate.left;
  }
  if (!model_->unused.empty() && model_->unused.contains(candidate.result)) {
    made_from_[candidate.result] = {candidate.left_id, candidate.right_id};
  }
  if (left.previous != kNone) {
    consider(left.previous);
  }
  consider(candidate.left);
}

void BpeEncoder::emit(const Symbol& symbol, std::string_view piece) {
  emit_token(symbol.id, piece.substr(symbol.begin, symbol.bytes));
}

// Splits an unused token into the two that it was made from (SentencePiece's resegmentation). The
// recursion ends, since a part is shorter than the whole.
void BpeEncoder::emit_token(std::int32_t id, std::string_view text) {
  if (id < 0) {
    emit_without_token(text);
  } else if (id >= model_->vocabulary_size) {
    emit_without_token(model_->orphans[id - model_->vocabulary_size]);
  } else if (const auto parts = made_from_.find(id); parts != made_from_.end()) {
    emit_token(parts->second.first, text);
    emit_token(parts->second.second, text);
  } else {
    out_->push_back(id);
    after_unknown_ = false;
  }
}

void BpeEncoder::emit_without_token(std::string_view text) {
  const auto token_of = [this](char c) {
    return model_->byte_tokens[static_cast<unsigned char>(c)];
  };
  if (std::all_of(text.begin(), text.end(), [&](char c) { return token_of(c) >= 0; })) {
    for (const char c : text) {
      out_->push_back(token_of(c));
    }
    after_unknown_ = false;
    return;
  }
  if (model_->unknown >= 0 && !(after_unknown_ && model_->fuse_unknown)) {
    out_->push_back(model_->unknown);
  }
  after_unknown_ = true;
}

}  // namespace protean

#pragma once

#include <atomic>
#include <cstddef>

namespace protean::grammar {

// The memory budget of all grammars of one vocabulary, and what they take of it. Any thread.
class GrammarMemory {
 public:
  // Each grammar needs `least_mask_bytes` for masks.
  explicit GrammarMemory(std::size_t most_bytes, std::size_t least_mask_bytes = 0)
      : most_bytes_(most_bytes), least_mask_bytes_(least_mask_bytes) {}

  // Grammars may take half of the budget; masks take the rest.
  std::size_t most_grammar_bytes() const { return most_bytes_ / 2; }
  std::size_t grammar_bytes() const { return grammar_bytes_; }
  std::size_t bytes() const { return grammar_bytes_ + mask_bytes_; }
  bool exceeded() const { return bytes() > most_bytes_; }

  // Returns true if the grammars take no more than they may and leave each other the masks that
  // they need.
  bool fits_grammars() const {
    return grammar_bytes_ <= most_grammar_bytes() && fair_mask_bytes() >= least_mask_bytes_;
  }

  // Bytes of masks that each grammar may keep while the budget is exceeded. If it is, at least one
  // grammar has more.
  std::size_t fair_mask_bytes() const {
    const std::size_t grammar_bytes = grammar_bytes_;
    const std::size_t left = most_bytes_ > grammar_bytes ? most_bytes_ - grammar_bytes : 0;
    const std::size_t grammars = grammars_;
    return grammars == 0 ? left : left / grammars;
  }

  void add_grammar(std::size_t bytes) {
    ++grammars_;
    grammar_bytes_ += bytes;
  }
  void remove_grammar(std::size_t bytes) {
    --grammars_;
    grammar_bytes_ -= bytes;
  }
  void resize_masks(std::size_t from, std::size_t to) {
    mask_bytes_ += to;
    mask_bytes_ -= from;
  }

 private:
  const std::size_t most_bytes_;
  const std::size_t least_mask_bytes_;
  std::atomic<std::size_t> grammars_ = 0;
  std::atomic<std::size_t> grammar_bytes_ = 0;
  std::atomic<std::size_t> mask_bytes_ = 0;
};

}  // namespace protean::grammar

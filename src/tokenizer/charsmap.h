#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace protean {

// SentencePiece's precompiled_charsmap: replacements of texts by texts, such as those of NFKC. Its
// bytes are the size of a double-array trie in 32 bits, the trie (darts-clone), and the
// replacements, each ended by a zero byte.
class Charsmap {
 public:
  // Fails with kCorrupt if the sizes do not agree.
  static Result<Charsmap> read(std::string_view bytes);

  // Replaces at each place the longest text that has a replacement, as SentencePiece does.
  std::string replace_longest(std::string_view text) const;
  // Replaces whole grapheme clusters of less than 6 bytes, then characters, each by the replacement
  // of the shortest text that it begins with, as Hugging Face's tokenizers do.
  std::string replace_clusters(std::string_view text) const;

  // Returns a bound of how many times longer, in bytes, the replacements make a text.
  double growth() const;

  friend bool operator==(const Charsmap&, const Charsmap&) = default;

 private:
  struct Found {
    std::size_t bytes = 0;  // length of the text that is replaced; 0: none
    std::string_view to;
  };
  Found find(std::string_view text, bool longest) const;
  void append_cluster(std::string_view cluster, std::string& out) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
  std::size_t longest_ = 0;  // replacement, in bytes
};

}  // namespace protean

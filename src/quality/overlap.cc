#include "quality/overlap.h"

#include <algorithm>
#include <map>

namespace protean {
namespace {

using Words = std::span<const std::string>;

double f1(std::size_t common, std::size_t candidate, std::size_t reference) {
  if (candidate + reference == 0) {
    return 1.0;
  }
  return 2.0 * static_cast<double>(common) / static_cast<double>(candidate + reference);
}

std::size_t longest_common_subsequence(Words a, Words b) {
  std::vector<std::size_t> lengths(b.size() + 1, 0);  // [j]: of a's words so far and b's first j
  for (const std::string& word : a) {
    std::size_t diagonal = 0;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = lengths[j + 1];
      lengths[j + 1] = word == b[j] ? diagonal + 1 : std::max(above, lengths[j]);
      diagonal = above;
    }
  }
  return lengths.back();
}

}  // namespace

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : text) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool part = upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                      static_cast<unsigned char>(c) >= 0x80;
    if (part && !inside) {
      words.emplace_back();
    }
    if (part) {
      words.back() += upper ? static_cast<char>(c - 'A' + 'a') : c;
    }
    inside = part;
  }
  return words;
}

double rouge_l(Words candidate, Words reference) {
  return f1(longest_common_subsequence(candidate, reference), candidate.size(), reference.size());
}

double token_f1(Words candidate, Words reference) {
  std::map<std::string_view, std::size_t> left;
  for (const std::string& word : reference) {
    ++left[word];
  }
  std::size_t common = 0;
  for (const std::string& word : candidate) {
    const auto found = left.find(word);
    if (found != left.end() && found->second > 0) {
      --found->second;
      ++common;
    }
  }
  return f1(common, candidate.size(), reference.size());
}

}  // namespace protean

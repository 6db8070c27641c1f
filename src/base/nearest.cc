#include "base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace protean {
namespace {

// Edits (a letter more, less, other, or two swapped) from one word to the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> edits(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        edits[i][j] = i + j;
        continue;
      }
      edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1,
                              edits[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
      }
    }
  }
  return edits[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> names) {
  std::string best;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    if (const std::size_t edits = distance(word, name); edits < least) {
      least = edits;
      best = name;
    }
  }
  return best;
}

}  // namespace protean

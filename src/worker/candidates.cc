#include "worker/candidates.h"

#include <algorithm>

namespace protean {

// NaN compares false with everything, so it never wins.
Candidate most_likely(std::span<const float> logits) {
  Candidate best;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > best.logit) {
      best = {logits[id], static_cast<TokenId>(id)};
    }
  }
  return best;
}

// In one pass: what is behind the k best so far is dropped whenever the room of 2 k is full.
void select_top_k(std::span<const float> logits, std::size_t k, std::vector<Candidate>& kept) {
  const auto cut = [&] {
    std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(k - 1), kept.end(),
                     likelier);
    kept.resize(k);
    return kept.back().logit;
  };
  kept.clear();
  float threshold = kNeverLogit;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > threshold) {
      kept.push_back({logits[id], static_cast<TokenId>(id)});
      if (kept.size() >= 2 * k) {
        threshold = cut();
      }
    }
  }
  if (kept.size() > k) {
    cut();
  }
}

}  // namespace protean

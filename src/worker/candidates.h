#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "base/ids.h"

namespace protean {

constexpr float kNeverLogit = -std::numeric_limits<float>::infinity();

struct Candidate {
  float logit = kNeverLogit;
  TokenId id = 0;
};

// Orders by likelihood; among equal logits, the lower id comes first.
inline bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Returns the most likely token. NaN never wins; a row of NaN alone gives {kNeverLogit, 0}.
Candidate most_likely(std::span<const float> logits);

// Selects the k most likely tokens of the row, unsorted; fewer if fewer can be drawn.
void select_top_k(std::span<const float> logits, std::size_t k, std::vector<Candidate>& kept);

}  // namespace protean

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

// The order of likelihood; among equal logits the lower id comes first.
inline bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// What is not a number never wins; a row without any is {kNeverLogit, 0}.
Candidate most_likely(std::span<const float> logits);

// The k first of the row in likelihood order, unsorted; fewer where the row has not so many that
// can be drawn at all.
void select_top_k(std::span<const float> logits, std::size_t k, std::vector<Candidate>& kept);

}  // namespace protean

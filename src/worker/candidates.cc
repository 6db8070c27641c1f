#include "worker/candidates.h"

#include <algorithm>

namespace protean {

namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kBlock = 1024;

// Works in lanes, which compilers vectorise. NaN compares false with everything, so it never wins.
float largest_of(std::span<const float> logits) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kNeverLogit);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float logit = logits[i + lane];
      lanes[lane] = logit > lanes[lane] ? logit : lanes[lane];
    }
  }
  for (; i < logits.size(); ++i) {
    lanes[0] = logits[i] > lanes[0] ? logits[i] : lanes[0];
  }
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace

Candidate most_likely(std::span<const float> logits) {
  float best = kNeverLogit;
  std::size_t best_block = 0;
  for (std::size_t first = 0; first < logits.size(); first += kBlock) {
    const float largest =
        largest_of(logits.subspan(first, std::min(kBlock, logits.size() - first)));
    if (largest > best) {
      best = largest;
      best_block = first;
    }
  }
  if (best == kNeverLogit) {
    return {};
  }
  const auto at =
      std::find(logits.begin() + static_cast<std::ptrdiff_t>(best_block), logits.end(), best);
  return {best, static_cast<TokenId>(at - logits.begin())};
}

// Takes one pass: whenever 2 k candidates are kept, all but the k best are dropped.
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

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"

namespace protean {

// Orders in which layers, or halves of them, go to fewer bits. A target is a layer or a half;
// targets are numbered in the order in which the model runs them.

// Similarities of MorphServe section 4.2, 1 for equal values: `transformation` is between a
// target's input and output (LTS, equation 2), `replacement` between its outputs at full precision
// and at fewer bits (LRS, equation 3).
struct TargetSensitivity {
  double transformation = 1.0;
  double replacement = 1.0;
};

// Alpha 1, alpha 2 and beta of equation 5.
struct ImportanceWeights {
  double transformation = 0.25;
  double replacement = 0.25;
  double degradation = 0.5;
};

struct RankedTarget {
  int target = 0;
  double score = 0.0;  // its LIS when it was chosen
};

// Returns for each target the similarity of the model with `lowered` and with this target lowered
// too (MDS, equation 4). Entries of targets that are already lowered have no meaning.
using DegradationOf = std::function<std::vector<double>(const std::vector<bool>& lowered)>;

// Ranks by algorithm 1 of appendix A: repeatedly takes the target with the highest LIS, given the
// targets taken before it. Takes the first of equals.
std::vector<RankedTarget> rank_by_importance(std::span<const TargetSensitivity> targets,
                                             const ImportanceWeights& weights,
                                             const DegradationOf& degradation);

std::vector<int> front_to_back(int targets);
std::vector<int> back_to_front(int targets);
std::vector<int> random_order(int targets, std::uint64_t seed);

// Returns the first `count` targets of an order as a set.
std::vector<bool> lowered_by(std::span<const int> order, int count);

// Returns 1, 2, 4, ... and `targets`: the numbers of lowered targets in the paper's tables.
std::vector<int> table_levels(int targets);

}  // namespace protean

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"

namespace protean {

// In which order layers, or halves of them, go to fewer bits. Targets are numbered in the order
// that the model runs them.

// MorphServe section 4.2, equations 2 and 3, each 1 where nothing is changed: how like its input a
// target's output is (LTS), and how like it the output at fewer bits (LRS).
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
  double score = 0.0;  // LIS, when it was chosen
};

// How like the model with these targets lowered it is with one more lowered (MDS, equation 4), by
// target; entries of targets that are lowered already mean nothing.
using DegradationOf = std::function<std::vector<double>(const std::vector<bool>& lowered)>;

// Algorithm 1 of appendix A: time and again the target with the highest LIS, given those before it.
// Of equals the first.
std::vector<RankedTarget> rank_by_importance(std::span<const TargetSensitivity> targets,
                                             const ImportanceWeights& weights,
                                             const DegradationOf& degradation);

std::vector<int> front_to_back(int targets);
std::vector<int> back_to_front(int targets);
std::vector<int> random_order(int targets, std::uint64_t seed);

// The first `count` of an order as a set.
std::vector<bool> lowered_by(std::span<const int> order, int count);

// 1, 2, 4, ... and all: how many targets the paper's tables lower.
std::vector<int> table_levels(int targets);

}  // namespace protean

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace protean {

// Columns of equal length, whose weighted sum approximates `target`.
struct LinearSystem {
  std::vector<std::vector<double>> columns;
  std::vector<double> target;
};

// Returns the first column that is zero or, up to rounding, a linear combination of the columns
// before it. The data cannot determine its weight.
std::optional<std::size_t> dependent_column(const LinearSystem& system);

// Returns the weights >= 0 with the least sum of squared errors (Lawson and Hanson's active set,
// each subproblem by orthogonalisation). The columns must be independent.
std::vector<double> nonnegative_least_squares(const LinearSystem& system);

}  // namespace protean

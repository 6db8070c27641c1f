#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace protean {

// Columns of equal length, which are weighed and added up to come near `target`.
struct LinearSystem {
  std::vector<std::vector<double>> columns;
  std::vector<double> target;
};

// The first column that is zero or, but for rounding, a sum of multiples of those before it: what
// it weighs no measurement can tell.
std::optional<std::size_t> dependent_column(const LinearSystem& system);

// The weights >= 0 with the least sum of squared errors (Lawson and Hanson's active set; each
// subproblem by orthogonalisation). Columns must be independent.
std::vector<double> nonnegative_least_squares(const LinearSystem& system);

}  // namespace protean

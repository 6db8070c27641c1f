#include "cost/least_squares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace protean {
namespace {

using Column = std::vector<double>;

double dot(const Column& a, const Column& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void subtract(Column& from, const Column& what, double times) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] -= times * what[i];
  }
}

// Factors columns into Q R by modified Gram-Schmidt, run twice, which for so few columns is as
// exact as Householder's method.
class Orthogonal {
 public:
  // Adds a column. Returns the share of its length that is orthogonal to the columns before it.
  double add(Column column) {
    const double length = std::sqrt(dot(column, column));
    Column row;
    for (const Column& direction : directions_) {
      row.push_back(dot(direction, column));
      subtract(column, direction, row.back());
    }
    for (std::size_t i = 0; i < directions_.size(); ++i) {
      const double again = dot(directions_[i], column);
      row[i] += again;
      subtract(column, directions_[i], again);
    }
    const double left = std::sqrt(dot(column, column));
    if (length == 0 || left <= kDependent * length) {
      return 0;
    }
    row.push_back(left);
    for (double& value : column) {
      value /= left;
    }
    directions_.push_back(std::move(column));
    rows_.push_back(std::move(row));
    return left / length;
  }

  // Returns the weights of the columns in the order in which they were added.
  Column solve(const Column& target) const {
    Column rest = target;
    Column weights(directions_.size());
    for (std::size_t i = 0; i < directions_.size(); ++i) {
      weights[i] = dot(directions_[i], rest);
      subtract(rest, directions_[i], weights[i]);
    }
    for (std::size_t i = weights.size(); i-- > 0;) {
      for (std::size_t j = i + 1; j < weights.size(); ++j) {
        weights[i] -= rows_[j][i] * weights[j];
      }
      weights[i] /= rows_[i][i];
    }
    return weights;
  }

 private:
  static constexpr double kDependent = 1e-9;

  std::vector<Column> directions_;
  std::vector<Column> rows_;  // rows_[j]: column j along directions 0 to j
};

// Returns the least-squares weights of the chosen columns, and 0 for the others.
Column solve_for(const LinearSystem& system, const std::vector<bool>& chosen) {
  Orthogonal orthogonal;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]) {
      check(orthogonal.add(system.columns[i]) > 0, "columns are independent");
      which.push_back(i);
    }
  }
  const Column solved = orthogonal.solve(system.target);
  Column weights(chosen.size());
  for (std::size_t i = 0; i < which.size(); ++i) {
    weights[which[i]] = solved[i];
  }
  return weights;
}

// Returns the column that would reduce the error most if its weight grew from 0; nothing if none
// would.
std::optional<std::size_t> most_wanted(const LinearSystem& system, const Column& weights,
                                       const std::vector<bool>& chosen) {
  constexpr double kGain = 1e-10;
  Column rest = system.target;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    subtract(rest, system.columns[i], weights[i]);
  }
  std::optional<std::size_t> best;
  double most = kGain * std::sqrt(dot(system.target, system.target));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Column& column = system.columns[i];
    const double gain = chosen[i] ? 0 : dot(column, rest) / std::sqrt(dot(column, column));
    if (gain > most) {
      most = gain;
      best = i;
    }
  }
  return best;
}

}  // namespace

std::optional<std::size_t> dependent_column(const LinearSystem& system) {
  Orthogonal orthogonal;
  for (std::size_t i = 0; i < system.columns.size(); ++i) {
    if (orthogonal.add(system.columns[i]) == 0) {
      return i;
    }
  }
  return std::nullopt;
}

std::vector<double> nonnegative_least_squares(const LinearSystem& system) {
  const std::size_t count = system.columns.size();
  Column weights(count);
  std::vector<bool> chosen(count);
  // Each round ends with a smaller error, so no set of columns comes twice. The bound guards
  // against rounding.
  for (std::size_t round = 0; round < 10 * count; ++round) {
    const auto next = most_wanted(system, weights, chosen);
    if (!next) {
      break;
    }
    chosen[*next] = true;
    for (;;) {
      const Column solved = solve_for(system, chosen);
      double step = 1;
      for (std::size_t i = 0; i < count; ++i) {
        if (chosen[i] && solved[i] <= 0) {
          step = std::min(
              step, weights[i] / (weights[i] - solved[i] + std::numeric_limits<double>::min()));
        }
      }
      bool dropped = false;
      for (std::size_t i = 0; i < count; ++i) {
        weights[i] = chosen[i] ? weights[i] + step * (solved[i] - weights[i]) : 0;
        if (chosen[i] && solved[i] <= 0 && weights[i] <= 1e-15 * std::abs(solved[i])) {
          chosen[i] = false;
          weights[i] = 0;
          dropped = true;
        }
      }
      if (!dropped) {
        break;
      }
    }
  }
  return weights;
}

}  // namespace protean

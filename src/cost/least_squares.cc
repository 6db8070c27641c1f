#include "cost/least_squares.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace protean {
namespace {

using Column = std::vector<double>;

// Adds up in lanes that do not wait for each other.
double dot(const Column& a, const Column& b) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  std::size_t at = 0;
  for (; at + kLanes <= a.size(); at += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += a[at + lane] * b[at + lane];
    }
  }
  for (; at < a.size(); ++at) {
    lanes[0] += a[at] * b[at];
  }
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

void subtract(Column& from, const Column& what, double times) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] -= times * what[i];
  }
}

// Factors columns into Q R by modified Gram-Schmidt, run twice, which for so few columns is as
// exact as Householder's method. A column more costs no new factorisation of those before it.
class Orthogonal {
 public:
  explicit Orthogonal(const Column& target) : target_(target), rest_(target) {}

  // Adds a column. Returns the share of its length that is orthogonal to the columns before it. If
  // there is none, adds nothing and returns 0.
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
    along_.push_back(dot(rest_, column));
    subtract(rest_, column, along_.back());
    directions_.push_back(std::move(column));
    rows_.push_back(std::move(row));
    return left / length;
  }

  // Removes all columns but the first `count`.
  void keep_first(std::size_t count) {
    directions_.resize(count);
    rows_.resize(count);
    along_.resize(count);
    rest_ = target_;
    for (std::size_t i = 0; i < count; ++i) {
      subtract(rest_, directions_[i], along_[i]);
    }
  }

  // Returns what no sum of the columns makes up of the target.
  const Column& rest() const { return rest_; }

  // Returns the weights of the columns in the order in which they were added.
  Column solve() const {
    Column weights = along_;
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

  const Column& target_;
  Column rest_;
  std::vector<Column> directions_;
  std::vector<Column> rows_;  // rows_[j]: column j along directions 0 to j
  Column along_;              // the target along each direction
};

// The columns with a weight above 0, and the fit of the target by them.
class ActiveSet {
 public:
  explicit ActiveSet(const LinearSystem& system)
      : system_(system),
        fit_(system.target),
        weights_(system.columns.size()),
        barred_(system.columns.size()) {
    for (const Column& column : system.columns) {
      lengths_.push_back(std::sqrt(dot(column, column)));
    }
  }

  const Column& weights() const { return weights_; }

  // Adds the column that would reduce the error most if its weight grew from 0, and removes those
  // that get no weight then. Returns false if there is none.
  bool grow() {
    const auto next = most_wanted();
    if (!next) {
      return false;
    }
    barred_[*next] = true;
    if (fit_.add(system_.columns[*next]) > 0) {
      members_.push_back(*next);
      while (!go_to_solution()) {
      }
    }
    return true;
  }

 private:
  std::optional<std::size_t> most_wanted() const {
    constexpr double kGain = 1e-10;
    std::optional<std::size_t> best;
    double most = kGain * std::sqrt(dot(system_.target, system_.target));
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const double gain = barred_[i] ? 0 : dot(system_.columns[i], fit_.rest()) / lengths_[i];
      if (gain > most) {
        most = gain;
        best = i;
      }
    }
    return best;
  }

  // Moves the weights towards the least-squares solution as far as none falls below 0, and removes
  // the members that have none left. Returns true if the solution is reached.
  bool go_to_solution() {
    const Column solved = fit_.solve();
    double step = 1;
    for (std::size_t at = 0; at < members_.size(); ++at) {
      const double weight = weights_[members_[at]];
      if (solved[at] <= 0) {
        step = std::min(step, weight / (weight - solved[at] + std::numeric_limits<double>::min()));
      }
    }
    std::vector<std::size_t> stay;
    std::size_t unchanged = members_.size();  // members before the first that is removed
    for (std::size_t at = 0; at < members_.size(); ++at) {
      double& weight = weights_[members_[at]];
      weight += step * (solved[at] - weight);
      if (solved[at] <= 0 && weight <= 1e-15 * std::abs(solved[at])) {
        weight = 0;
        barred_[members_[at]] = false;
        unchanged = std::min(unchanged, at);
      } else {
        stay.push_back(members_[at]);
      }
    }
    if (stay.size() == members_.size()) {
      return true;
    }
    members_ = std::move(stay);
    fit_.keep_first(unchanged);
    for (std::size_t at = unchanged; at < members_.size(); ++at) {
      check(fit_.add(system_.columns[members_[at]]) > 0, "fewer columns are independent too");
    }
    return false;
  }

  const LinearSystem& system_;
  Orthogonal fit_;
  std::vector<std::size_t> members_;  // columns of `fit_`
  Column weights_;
  Column lengths_;
  std::vector<bool> barred_;  // members, and columns that depend on members
};

}  // namespace

std::optional<std::size_t> dependent_column(const LinearSystem& system) {
  Orthogonal orthogonal(system.target);
  for (std::size_t i = 0; i < system.columns.size(); ++i) {
    if (orthogonal.add(system.columns[i]) == 0) {
      return i;
    }
  }
  return std::nullopt;
}

std::vector<double> nonnegative_least_squares(const LinearSystem& system) {
  ActiveSet active(system);
  // Each round ends with a smaller error, so no set of columns comes twice. The bound guards
  // against rounding.
  for (std::size_t round = 0; round < 10 * system.columns.size() && active.grow(); ++round) {
  }
  return active.weights();
}

}  // namespace protean

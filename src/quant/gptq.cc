#include "quant/gptq.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::int64_t kBlock = 128;  // inputs rounded before the rest is updated; whole groups

// Returns the Hessian with rows and columns in reverse `order`. Inputs that are always 0 have no
// effect; they get a diagonal entry, which makes them round independently.
Eigen::MatrixXd reversed_hessian(const InputStatistics& inputs,
                                 const std::vector<std::int64_t>& order, double damping) {
  const std::int64_t n = inputs.inputs();
  const float* gram = inputs.gram().data();
  Eigen::MatrixXd hessian(n, n);
  for (std::int64_t i = 0; i < n; ++i) {
    const float* row = gram + order[static_cast<std::size_t>(n - 1 - i)] * n;
    for (std::int64_t j = 0; j <= i; ++j) {
      hessian(i, j) = row[order[static_cast<std::size_t>(n - 1 - j)]];
    }
  }
  const double mean = hessian.diagonal().mean();
  for (std::int64_t i = 0; i < n; ++i) {
    hessian(i, i) = hessian(i, i) == 0.0 ? std::max(mean, 1.0) : hessian(i, i) + damping * mean;
  }
  return hessian;
}

}  // namespace

// H = R R^T with R upper triangular gives H^-1 = U^T U with U = R^-1. Factoring the reversed H
// yields the reversed R, so the inverse of H itself is never computed.
Result<Gptq> Gptq::factor(const InputStatistics& inputs, const QuantFormat& format,
                          const GptqOptions& options) {
  const std::int64_t n = inputs.inputs();
  Gptq gptq;
  gptq.format_ = format;
  gptq.inputs_ = n;
  gptq.in_order_ = !options.activation_order;
  gptq.order_.resize(static_cast<std::size_t>(n));
  std::iota(gptq.order_.begin(), gptq.order_.end(), 0);
  if (options.activation_order) {
    const auto variance = [&](std::int64_t input) {
      return inputs.gram()[static_cast<std::size_t>(input * n + input)];
    };
    std::stable_sort(gptq.order_.begin(), gptq.order_.end(),
                     [&](std::int64_t a, std::int64_t b) { return variance(a) > variance(b); });
  }
  Eigen::MatrixXd hessian = reversed_hessian(inputs, gptq.order_, options.damping);
  const Eigen::LLT<Eigen::Ref<Eigen::MatrixXd>> cholesky(hessian);
  if (cholesky.info() != Eigen::Success || !hessian.diagonal().allFinite()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the calibration text gives a Hessian of {} inputs that cannot be factored: "
                      "use more text, more damping or --method awq",
                      n);
  }
  Eigen::MatrixXd inverse = Eigen::MatrixXd::Identity(n, n);
  cholesky.matrixL().solveInPlace(inverse);
  gptq.factor_.resize(static_cast<std::size_t>(n * n));
  Eigen::Map<RowMatrix>(gptq.factor_.data(), n, n) = inverse.reverse().cast<float>();
  return gptq;
}

// The weights not yet rounded, [position][row], so that a step is arithmetic on whole vectors.
struct Gptq::Work {
  QuantizedMatrix matrix;
  RowMatrix weights;
  RowMatrix errors;              // errors of the current block, [position in block][row]
  std::vector<GroupGrid> grids;  // grid of every row, for the current group
  Eigen::Array<float, 1, Eigen::Dynamic> error;
};

// Fits a group's grids to its current weights, which include the compensation of earlier errors.
void Gptq::start_group(Work& work, std::int64_t group) const {
  const std::int64_t first = group * format_.group;
  const std::int64_t count = std::min<std::int64_t>(format_.group, inputs_ - first);
  const auto members = work.weights.middleRows(first, count);
  const auto low = members.colwise().minCoeff().eval();
  const auto high = members.colwise().maxCoeff().eval();
  for (std::int64_t row = 0; row < work.matrix.rows; ++row) {
    const GroupGrid grid = fit_grid(low[row], high[row], format_);
    const auto at = static_cast<std::size_t>(row * work.matrix.groups() + group);
    work.grids[at] = grid;
    work.matrix.scales[at] = grid.scale;
    work.matrix.offsets[at] = grid.offset();
  }
}

void Gptq::quantize_input(Work& work, std::int64_t position) const {
  const std::int64_t input = order_[static_cast<std::size_t>(position)];
  const std::int64_t group = input / format_.group;
  const float pivot = factor_[static_cast<std::size_t>(position * inputs_ + position)];
  for (std::int64_t row = 0; row < work.matrix.rows; ++row) {
    const GroupGrid& grid =
        work.grids[static_cast<std::size_t>(row * work.matrix.groups() + group)];
    const float weight = work.weights(position, row);
    const std::uint8_t code = nearest_code(weight, grid, format_);
    work.matrix.codes[static_cast<std::size_t>(row * inputs_ + input)] = code;
    work.error[row] = (weight - grid.scale * static_cast<float>(code - grid.zero)) / pivot;
  }
}

QuantizedMatrix Gptq::quantize(std::span<const float> weights) const {
  check(static_cast<std::int64_t>(weights.size()) % inputs_ == 0, "weights are whole rows");
  const std::int64_t rows = static_cast<std::int64_t>(weights.size()) / inputs_;
  Work work{.matrix = QuantizedMatrix::sized(format_, rows, inputs_)};
  work.weights = Eigen::Map<const RowMatrix>(weights.data(), rows, inputs_).transpose();
  work.errors.resize(kBlock, rows);
  work.error.resize(rows);
  work.grids.resize(work.matrix.scales.size());
  if (!in_order_) {
    for (std::int64_t group = 0; group < work.matrix.groups(); ++group) {
      start_group(work, group);
    }
    const RowMatrix natural = work.weights;
    for (std::int64_t position = 0; position < inputs_; ++position) {
      work.weights.row(position) = natural.row(order_[static_cast<std::size_t>(position)]);
    }
  }
  const Eigen::Map<const RowMatrix> factor(factor_.data(), inputs_, inputs_);
  for (std::int64_t first = 0; first < inputs_; first += kBlock) {
    const std::int64_t end = std::min(inputs_, first + kBlock);
    for (std::int64_t position = first; position < end; ++position) {
      if (in_order_ && position % format_.group == 0) {
        start_group(work, position / format_.group);
      }
      quantize_input(work, position);
      for (std::int64_t later = position + 1; later < end; ++later) {
        work.weights.row(later).array() -= factor(position, later) * work.error;
      }
      work.errors.row(position - first) = work.error.matrix();
    }
    if (end < inputs_) {
      work.weights.bottomRows(inputs_ - end).noalias() -=
          factor.block(first, end, end - first, inputs_ - end).transpose() *
          work.errors.topRows(end - first);
    }
  }
  return std::move(work.matrix);
}

}  // namespace protean

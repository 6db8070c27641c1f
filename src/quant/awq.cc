#include "quant/awq.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "quant/coordinate_descent.h"
#include "quant/round_to_nearest.h"

namespace protean {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int kExponentSteps = 20;
// Rows are similar enough to judge a matrix by a sample, which is smaller if each row costs more.
constexpr std::int64_t kLeastSearchRows = 128;
constexpr std::int64_t kMostSearchRows = 512;
constexpr std::int64_t kSearchProducts = std::int64_t{1} << 33;
constexpr int kClipSteps = 10;
constexpr float kClipStep = 0.05F;

// Samples rows evenly over a matrix; each sample stands for several rows.
struct SampledRows {
  std::vector<float> weights;
  double weight = 1.0;
};

SampledRows sample_rows(std::span<const float> matrix, std::int64_t inputs) {
  const std::int64_t rows = static_cast<std::int64_t>(matrix.size()) / inputs;
  const std::int64_t affordable =
      std::clamp(kSearchProducts / (inputs * inputs), kLeastSearchRows, kMostSearchRows);
  const std::int64_t count = std::min(rows, affordable);
  SampledRows sampled{.weight = static_cast<double>(rows) / static_cast<double>(count)};
  sampled.weights.reserve(static_cast<std::size_t>(count * inputs));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto row = matrix.begin() + i * rows / count * inputs;
    sampled.weights.insert(sampled.weights.end(), row, row + inputs);
  }
  return sampled;
}

// Replaces values by the mean over the inputs that share a scale.
void average_shared(std::span<const std::int32_t> shared, std::vector<double>& values) {
  if (shared.empty()) {
    return;
  }
  check(shared.size() == values.size(), "every input has a scale");
  const auto classes =
      static_cast<std::size_t>(*std::max_element(shared.begin(), shared.end())) + 1;
  std::vector<double> sums(classes);
  std::vector<int> counts(classes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[static_cast<std::size_t>(shared[i])] += values[i];
    ++counts[static_cast<std::size_t>(shared[i])];
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto group = static_cast<std::size_t>(shared[i]);
    values[i] = sums[group] / counts[group];
  }
}

// Returns for each input the mean over all rows of |w| relative to the largest of its group.
std::vector<double> relative_magnitudes(std::span<const SampledRows> matrices, std::int64_t inputs,
                                        int group) {
  std::vector<double> sums(static_cast<std::size_t>(inputs));
  for (const SampledRows& matrix : matrices) {
    for (std::size_t row = 0; row < matrix.weights.size(); row += sums.size()) {
      for (std::size_t first = 0; first < sums.size(); first += static_cast<std::size_t>(group)) {
        const std::size_t end = std::min(sums.size(), first + static_cast<std::size_t>(group));
        float largest = std::numeric_limits<float>::min();
        for (std::size_t i = first; i < end; ++i) {
          largest = std::max(largest, std::fabs(matrix.weights[row + i]));
        }
        for (std::size_t i = first; i < end; ++i) {
          sums[i] += matrix.weight * double{std::fabs(matrix.weights[row + i]) / largest};
        }
      }
    }
  }
  return sums;
}

// Returns the scales x^a / w^b, centred about 1 so that weights keep their magnitude.
std::vector<float> scales_at(std::span<const double> x, std::span<const double> w, double a,
                             double b) {
  std::vector<double> logs(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    logs[i] = x[i] > 0.0 && w[i] > 0.0 ? a * std::log(x[i]) - b * std::log(w[i]) : 0.0;
  }
  const auto [low, high] = std::minmax_element(logs.begin(), logs.end());
  const double middle = (*low + *high) / 2.0;
  std::vector<float> scales(x.size());
  constexpr double kLargestLog = 7.0;  // a factor above 1000 would cost precision of f16 scales
  std::transform(logs.begin(), logs.end(), scales.begin(), [&](double log) {
    return static_cast<float>(std::exp(std::clamp(log - middle, -kLargestLog, kLargestLog)));
  });
  return scales;
}

double error_at(std::span<const SampledRows> matrices, std::span<const float> scales,
                const QuantFormat& format, OutputError& output_error) {
  const auto inputs = static_cast<std::int64_t>(scales.size());
  double error = 0.0;
  for (const SampledRows& matrix : matrices) {
    std::vector<float> scaled = matrix.weights;
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      scaled[i] *= scales[i % scales.size()];
    }
    const QuantizedMatrix quantized = round_to_nearest(scaled, inputs, format);
    dequantize_rows(quantized.view(), 0, quantized.rows, scaled.data());
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      scaled[i] = scaled[i] / scales[i % scales.size()] - matrix.weights[i];
    }
    error += matrix.weight * output_error.of(scaled);
  }
  return error;
}

// Chooses for one group of every row the clipped grid with the least error in what the group's
// inputs add to the outputs.
void clip_group(std::span<const float> weights, const InputStatistics& inputs, std::int64_t group,
                QuantizedMatrix& matrix) {
  const std::int64_t first = group * matrix.format.group;
  const std::int64_t count = std::min<std::int64_t>(matrix.format.group, matrix.inputs - first);
  const Eigen::Map<const RowMatrix> gram(inputs.gram().data(), matrix.inputs, matrix.inputs);
  const RowMatrix block = gram.block(first, first, count, count);
  const auto members = Eigen::Map<const RowMatrix>(weights.data(), matrix.rows, matrix.inputs)
                           .middleCols(first, count);
  std::vector<GroupGrid> best(static_cast<std::size_t>(matrix.rows));
  Eigen::VectorXf least =
      Eigen::VectorXf::Constant(matrix.rows, std::numeric_limits<float>::infinity());
  std::vector<GroupGrid> grids(best.size());
  RowMatrix errors(matrix.rows, count);
  for (int step = 0; step < kClipSteps; ++step) {
    const float share = 1.0F - kClipStep * static_cast<float>(step);
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
      const GroupGrid grid = fit_grid(share * members.row(row).minCoeff(),
                                      share * members.row(row).maxCoeff(), matrix.format);
      grids[static_cast<std::size_t>(row)] = grid;
      for (std::int64_t i = 0; i < count; ++i) {
        const int code = nearest_code(members(row, i), grid, matrix.format);
        errors(row, i) = grid.scale * static_cast<float>(code - grid.zero) - members(row, i);
      }
    }
    const Eigen::VectorXf lost = (errors * block).cwiseProduct(errors).rowwise().sum();
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
      if (lost[row] < least[row]) {
        least[row] = lost[row];
        best[static_cast<std::size_t>(row)] = grids[static_cast<std::size_t>(row)];
      }
    }
  }
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const GroupGrid& grid = best[static_cast<std::size_t>(row)];
    const auto at = static_cast<std::size_t>(row * matrix.groups() + group);
    matrix.scales[at] = grid.scale;
    matrix.offsets[at] = grid.offset();
    for (std::int64_t i = 0; i < count; ++i) {
      matrix.codes[static_cast<std::size_t>(row * matrix.inputs + first + i)] =
          nearest_code(members(row, i), grid, matrix.format);
    }
  }
}

}  // namespace

std::vector<float> search_scales(cpu::Team& team, WeightGroup matrices,
                                 const InputStatistics& inputs, const QuantFormat& format,
                                 std::span<const std::int32_t> shared) {
  std::vector<SampledRows> sampled;
  for (const std::span<const float> matrix : matrices) {
    sampled.push_back(sample_rows(matrix, inputs.inputs()));
  }
  std::vector<double> x(inputs.magnitudes().begin(), inputs.magnitudes().end());
  std::vector<double> w = relative_magnitudes(sampled, inputs.inputs(), format.group);
  average_shared(shared, x);
  average_shared(shared, w);
  OutputError output_error(team, inputs);
  std::vector<float> best(x.size(), 1.0F);
  double least = error_at(sampled, best, format, output_error);
  for (int step = 0; step <= kExponentSteps; ++step) {
    const double a = static_cast<double>(step) / kExponentSteps;
    for (const double b : {0.0, 1.0 - a}) {
      std::vector<float> scales = scales_at(x, w, a, b);
      const double error = error_at(sampled, scales, format, output_error);
      if (error < least) {
        least = error;
        best = std::move(scales);
      }
    }
  }
  return best;
}

QuantizedMatrix round_clipped(cpu::Team& team, std::span<const float> weights,
                              const InputStatistics& inputs, const QuantFormat& format) {
  const std::int64_t rows = static_cast<std::int64_t>(weights.size()) / inputs.inputs();
  QuantizedMatrix matrix = QuantizedMatrix::sized(format, rows, inputs.inputs());
  team.run(matrix.groups(),
           [&](std::int64_t group, int) { clip_group(weights, inputs, group, matrix); });
  descend(team, weights, inputs, matrix);
  return matrix;
}

}  // namespace protean

#include "quant/pruning.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace protean {

void prune_two_of_four(std::span<float> weights, std::int64_t inputs,
                       std::span<const float> input_sizes) {
  check(std::ssize(input_sizes) == inputs && std::ssize(weights) % inputs == 0,
        "rows have a size for each input");
  for (std::int64_t row = 0; row < std::ssize(weights); row += inputs) {
    for (std::int64_t first = 0; first < inputs; first += 4) {
      const int count = static_cast<int>(std::min<std::int64_t>(4, inputs - first));
      float* const four = weights.data() + row + first;
      const float* const sizes = input_sizes.data() + first;
      int order[4] = {0, 1, 2, 3};
      std::stable_sort(order, order + count, [&](int a, int b) {
        return std::abs(four[a]) * sizes[a] > std::abs(four[b]) * sizes[b];
      });
      for (int i = 2; i < count; ++i) {
        four[order[i]] = 0;
      }
    }
  }
}

std::vector<float> input_sizes(const InputStatistics& inputs) {
  const std::int64_t count = inputs.inputs();
  std::vector<float> sizes(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    sizes[static_cast<std::size_t>(i)] =
        std::sqrt(inputs.gram()[static_cast<std::size_t>(i * count + i)]);
  }
  return sizes;
}

std::vector<double> run_importance(std::span<const float> weights, const InputStatistics& inputs,
                                   std::int64_t run) {
  const std::int64_t count = inputs.inputs();
  check(count % run == 0 && std::ssize(weights) % count == 0, "rows are whole runs");
  const float* const gram = inputs.gram().data();
  std::vector<double> importance(static_cast<std::size_t>(count / run), 0.0);
  for (std::int64_t row = 0; row < std::ssize(weights); row += count) {
    const float* const w = weights.data() + row;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = i / run * run;
      double product = 0;
      for (std::int64_t j = first; j < first + run; ++j) {
        product += double{gram[i * count + j]} * w[j];
      }
      importance[static_cast<std::size_t>(i / run)] += product * w[i];
    }
  }
  return importance;
}

std::vector<int> largest(std::span<const double> values, int count) {
  check(count >= 0 && count <= std::ssize(values), "there are so many values");
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace protean

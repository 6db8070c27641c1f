#include "worker/pooling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "contract/step.h"

namespace protean {
namespace {

// Values of such different sizes that plain sums of doubles would depend on their order.
TEST(Pooling, SumsAreTheSameInAnyPieces) {
  constexpr std::size_t kWidth = 300;
  constexpr std::size_t kRows = 200;
  std::mt19937 random(3);
  std::vector<float> rows(kWidth * kRows);
  for (float& value : rows) {
    const float sign = random() % 2 == 0 ? 1.0F : -1.0F;
    value = sign * std::ldexp(1.0F + static_cast<float>(random() % 4096) / 4097.0F,
                              static_cast<int>(random() % 58) - 40);
  }
  const auto pool = [&](std::size_t rows_at_once, int threads) {
    cpu::Team team(threads);
    std::vector<double> sums(kWidth);
    for (std::size_t row = 0; row < kRows; row += rows_at_once) {
      std::vector<double> piece(kWidth);
      add_rows(team,
               std::span(rows).subspan(row * kWidth, std::min(rows_at_once, kRows - row) * kWidth),
               piece);
      for (std::size_t column = 0; column < kWidth; ++column) {
        sums[column] += piece[column];
      }
    }
    return sums;
  };
  const std::vector<double> whole = pool(kRows, 1);
  for (const std::size_t rows_at_once : {1U, 7U, 64U, 199U}) {
    EXPECT_EQ(pool(rows_at_once, 3), whole);
  }
  for (std::size_t column = 0; column < kWidth; ++column) {
    long double exact = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      exact += rows[row * kWidth + column];
    }
    EXPECT_NEAR(whole[column], static_cast<double>(exact), kRows * kPooledQuantum / 2);
  }
}

}  // namespace
}  // namespace protean

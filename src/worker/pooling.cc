#include "worker/pooling.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "contract/step.h"

namespace protean {
namespace {

constexpr std::size_t kColumns = 128;  // summed by one thread

}  // namespace

void add_rows(cpu::Team& team, std::span<const float> rows, std::span<double> sums) {
  const std::size_t width = sums.size();
  team.run(static_cast<std::int64_t>(ceil_div(width, kColumns)), [&](std::int64_t tile, int) {
    const std::size_t first = static_cast<std::size_t>(tile) * kColumns;
    const std::size_t end = std::min(first + kColumns, width);
    for (std::size_t row = 0; row < rows.size(); row += width) {
      for (std::size_t column = first; column < end; ++column) {
        const double value = rows[row + column];
        sums[column] += std::nearbyint(value / kPooledQuantum) * kPooledQuantum;
      }
    }
  });
}

}  // namespace protean

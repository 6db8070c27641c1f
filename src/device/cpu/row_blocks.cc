#include "device/cpu/row_blocks.h"

#include "base/units.h"
#include "device/cpu/packed_matrix.h"

namespace protean::cpu {
namespace {

// With fewer elements, waking a thread costs more than it saves.
constexpr std::int64_t kSerialElements = 1 << 14;

}  // namespace

// An input takes at most 2 bytes, as bf16 or as a 16-bit integer. A group has a scale and a sum.
std::int64_t arranged_rows_bytes(std::int64_t rows, std::int64_t inputs) {
  constexpr std::int64_t kLeastGroup = 32;
  const std::int64_t padded = round_up<std::int64_t>(inputs, PackedMatrix::kInputBlock);
  return round_up<std::int64_t>(rows, kTileRows16) * padded * 2 + rows * padded / kLeastGroup * 8;
}

void arrange_blocks(Team& team, const RowBlocks& blocks, std::int64_t inputs, std::int64_t parts,
                    const std::function<void(std::int64_t block, std::int64_t part)>& arrange) {
  const std::int64_t tasks = blocks.count * parts;
  if (blocks.rows * inputs < kSerialElements) {
    for (std::int64_t task = 0; task < tasks; ++task) {
      arrange(task / parts, task % parts);
    }
  } else {
    team.run(tasks, [&](std::int64_t task, int) { arrange(task / parts, task % parts); });
  }
}

}  // namespace protean::cpu

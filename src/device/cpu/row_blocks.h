#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "device/cpu/team.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {

// Divides rows of activations into blocks, one for each tile of a product. Blocks for AMX have 16
// rows, of which the last block may use fewer. Blocks for vectors differ by at most one row, and
// the larger ones come first.
struct RowBlocks {
  std::int64_t rows = 0;
  std::int64_t count = 0;
  bool tiled = false;

  bool operator==(const RowBlocks&) const = default;

  std::int64_t stored_rows() const { return tiled ? count * kTileRows16 : rows; }
  std::int64_t begin(std::int64_t block) const {
    return tiled ? std::min(rows, block * kTileRows16)
                 : rows / count * block + std::min(block, rows % count);
  }
  // Returns the block of a row.
  std::int64_t at(std::int64_t row) const {
    const std::int64_t least = rows / count;
    return tiled ? row / kTileRows16 : std::max(row / (least + 1), (row - rows % count) / least);
  }
};

// Returns the bytes that suffice to arrange rows for any weights and any instruction set.
std::int64_t arranged_rows_bytes(std::int64_t rows, std::int64_t inputs);

// Calls arrange(block, part) for each part of each block; on all threads unless there is little
// work.
void arrange_blocks(Team& team, const RowBlocks& blocks, std::int64_t inputs, std::int64_t parts,
                    const std::function<void(std::int64_t block, std::int64_t part)>& arrange);

}  // namespace protean::cpu

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "device/cpu/team.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {

// Rows of activations in blocks, as a tile of a product reads them: of 16 rows for AMX, where the
// last may be missing; for vectors of nearly the same number, the first ones having a row more than
// the others if any have.
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
  // The one that this row is in.
  std::int64_t at(std::int64_t row) const {
    const std::int64_t least = rows / count;
    return tiled ? row / kTileRows16 : std::max(row / (least + 1), (row - rows % count) / least);
  }
};

// What rows of so many inputs take at most, arranged for any weights and any unit.
std::int64_t arranged_rows_bytes(std::int64_t rows, std::int64_t inputs);

// Calls arrange for each of so many parts of each block of rows of so many inputs, on all threads
// where that pays.
void arrange_blocks(Team& team, const RowBlocks& blocks, std::int64_t inputs, std::int64_t parts,
                    const std::function<void(std::int64_t block, std::int64_t part)>& arrange);

}  // namespace protean::cpu

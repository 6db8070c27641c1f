#include "device/cpu/matmul_rows.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/interleave-inl.h"
#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr std::int64_t kInputBlock = PackedMatrix::kInputBlock;
static_assert(kInputBlock == kTileInputs, "rows end with the last step of tiles");

// Packs inputs of a row, which are bf16 values, in pairs, padded with zeros to whole blocks of
// inputs.
inline void pair_inputs(const float* x, std::int64_t count, std::uint32_t* words) {
  alignas(64) float rest[kInputBlock];
  for (std::int64_t i = 0; i < count; i += kInputBlock, words += kInputBlock / 2) {
    const float* from = x + i;
    if (count - i < kInputBlock) {
      std::fill(std::copy_n(from, count - i, rest), std::end(rest), 0.0f);
      from = rest;
    }
    for (int k = 0; k < kInputBlock; k += kTwoVecs) {
      const TwoVecs pair = load_sums<std::uint16_t>(from + k);
      const Words d;
      hn::StoreU(hn::Or(hn::ShiftRight<16>(hn::BitCast(d, pair.a)), hn::BitCast(d, pair.b)), d,
                 words + k / 2);
    }
  }
}

// Writes a block as [word][row]. Handles some words of all rows at a time, which stay in L1.
inline void arrange_block(const MatmulRows& all, std::int64_t first, int rows,
                          std::uint32_t* block) {
  // One more cache line between rows keeps them from competing for the same lines.
  constexpr std::int64_t kInputs = 256, kStride = kInputs / 2 + 16;
  alignas(64) std::uint32_t words[kFloatTileRows * kStride];
  for (std::int64_t begin = 0; begin < all.inputs; begin += kInputs) {
    const std::int64_t count = std::min(kInputs, all.inputs - begin);
    for (int r = 0; r < rows; ++r) {
      pair_inputs(all.x + (first + r) * all.inputs + begin, count, words + r * kStride);
    }
    const std::int64_t padded = round_up(count, kInputBlock);
    interleave_rows(words, kStride, rows, padded / 2, block + begin / 2 * rows);
  }
}

// Writes a block as one tile for each step. Unused rows become zeros.
inline void arrange_tiles(const MatmulRows& all, std::int64_t first, int rows, std::uint32_t* to) {
  const Words words;
  const hn::Rebind<std::uint16_t, Words> halves;
  const auto tile_at = [&](std::int64_t input) {
    return reinterpret_cast<std::uint16_t*>(to) + all.tile_offset(first, input) / 2;
  };
  for (int row = 0; row < rows; ++row) {
    const float* const from = all.x + (first + row) * all.inputs;
    for (std::int64_t begin = 0; begin < all.inputs; begin += kTileInputs) {
      std::uint16_t* const halves_of_row = tile_at(begin) + std::ptrdiff_t{row} * kTileInputs;
      alignas(64) float padded[kTileInputs];
      const float* source = from + begin;
      if (const std::int64_t left = all.inputs - begin; left < kTileInputs) {
        std::fill(std::copy_n(source, left, padded), std::end(padded), 0.0f);
        source = padded;
      }
      for (int i = 0; i < kTileInputs; i += kLanes) {
        const auto bits = hn::LoadU(words, reinterpret_cast<const std::uint32_t*>(source + i));
        hn::StoreU(hn::TruncateTo(halves, hn::ShiftRight<16>(bits)), halves, halves_of_row + i);
      }
    }
  }
  for (std::int64_t begin = 0; begin < all.inputs; begin += kTileInputs) {
    std::fill_n(tile_at(begin) + std::ptrdiff_t{rows} * kTileInputs,
                std::ptrdiff_t{kTileRows16 - rows} * kTileInputs, std::uint16_t{0});
  }
}

inline void sum_groups(const MatmulRows& all, std::int64_t first, int rows, float* sums) {
  for (std::int64_t begin = 0; begin < all.inputs; begin += all.group, sums += all.blocks.rows) {
    const std::int64_t count = std::min<std::int64_t>(all.group, all.inputs - begin);
    for (std::int64_t row = first; row < first + rows; ++row) {
      sums[row] = sum_inputs(all.x + row * all.inputs + begin, count);
    }
  }
}

void arrange(const MatmulRows& all, std::int64_t block, std::uint32_t* words, float* sums) {
  const std::int64_t first = all.blocks.begin(block);
  const int rows = static_cast<int>(all.blocks.begin(block + 1) - first);
  if (sums != nullptr) {
    sum_groups(all, first, rows, sums);
  }
  all.blocks.tiled ? arrange_tiles(all, first, rows, words)
                   : arrange_block(all, first, rows, words + first * all.row_words());
}

int float_tile_rows() {
  return kFloatTileRows;
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(arrange);
HWY_EXPORT(float_tile_rows);

// With so few rows memory is the limit, and making pairs of the weights would cost more than it
// saves.
constexpr std::int64_t kMaxSingleRows = 2;

// AMX multiplies any number of rows, even one: its sums have another order than those of vectors,
// and the bits of a row must not depend on the batch. That costs nothing, as few rows wait for
// memory.
MatmulIsa isa_for(const WeightFormat& format, MatmulIsa wanted) {
  if (format.kind == WeightKind::kF32) {
    return MatmulIsa::kVector;
  }
  return wanted == MatmulIsa::kBest ? best_isa() : wanted;
}

}  // namespace

MatmulRows arrange_rows(Team& team, std::span<const float> x, const PackedMatrix& weights,
                        std::span<std::byte> memory, MatmulIsa isa) {
  check(!weights.format.int8_inputs(), "weights with int8_inputs() are multiplied with Int8Rows");
  const std::int64_t count = std::ssize(x) / weights.inputs;
  check(std::ssize(x) == count * weights.inputs, "x is not rows of the matrix's inputs");
  MatmulRows rows{.x = x.data(),
                  .inputs = weights.inputs,
                  .isa = isa_for(weights.format, isa),
                  .blocks = {.rows = count}};
  rows.blocks.tiled = has_tiles(rows.isa);
  const std::int64_t most =
      rows.blocks.tiled ? kTileRows16 : HWY_DYNAMIC_DISPATCH(float_tile_rows)();
  rows.blocks.count = ceil_div(count, most);
  if (rows.isa == MatmulIsa::kVector || (rows.isa == MatmulIsa::kDot && count <= kMaxSingleRows)) {
    return rows;
  }
  check(std::ssize(memory) >= arranged_rows_bytes(count, rows.inputs),
        "the memory is large enough for the rows");
  auto* const words = reinterpret_cast<std::uint32_t*>(memory.data());
  rows.words = words;
  float* sums = nullptr;
  if (rows.blocks.tiled && weights.format.quantized() && !weights.format.symmetric) {
    rows.group = weights.format.group;
    sums = reinterpret_cast<float*>(words + rows.blocks.stored_rows() * rows.row_words());
    rows.group_sums = sums;
  }
  arrange_blocks(team, rows.blocks, rows.inputs, 1, [&](std::int64_t block, std::int64_t) {
    HWY_DYNAMIC_DISPATCH(arrange)(rows, block, words, sums);
  });
  return rows;
}

}  // namespace protean::cpu
#endif

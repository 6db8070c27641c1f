#include "device/cpu/matmul_rows.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/matmul_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/elementwise-inl.h"
#include "device/cpu/interleave-inl.h"
#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr std::int64_t kInputBlock = PackedMatrix::kInputBlock;
static_assert(kInputBlock == kTileInputs, "rows end with the last step of tiles");

// Inputs of a row that are arranged at once, so that those of all rows of a block stay in L1.
constexpr std::int64_t kArrangedInputs = 256;
constexpr int kLargestGroup = 128;
static_assert(kArrangedInputs % kLargestGroup == 0, "a sum of a group is written once");
static_assert(PackedMatrix::kPanel % kInputBlock == 0, "tasks of other panels share no tile");

// Packs a block of inputs of a row, which are bf16 values, in pairs.
HWY_INLINE void pair_inputs(const float* x, std::uint32_t* words) {
  const Words d;
  for (int i = 0; i < kInputBlock; i += kTwoVecs) {
    const TwoVecs pair = load_sums<std::uint16_t>(x + i);
    hn::StoreU(hn::Or(hn::ShiftRight<16>(hn::BitCast(d, pair.a)), hn::BitCast(d, pair.b)), d,
               words + i / 2);
  }
}

// Writes the sums of the groups of a run, whose row is counted from the first of all rows.
inline void sum_groups(const MatmulRows& to, const float* x, const RowRun& run) {
  for (std::int64_t i = 0; i < run.count; i += to.group) {
    const std::int64_t count = std::min<std::int64_t>(to.group, run.count - i);
    to.group_sums[(run.begin + i) / to.group * to.blocks.rows + run.row] = sum_inputs(x + i, count);
  }
}

// Writes some inputs of a block whose first row is `first`: for vectors as [word][row], for tiles
// as one tile for each step, whose unused rows become zeros.
void arrange(const MatmulRows& to, const BlockInputs& given, std::int64_t first) {
  constexpr std::int64_t kBlockWords = kInputBlock / 2;
  // One more cache line between rows keeps them from competing for the same lines.
  constexpr std::int64_t kStride = kArrangedInputs / 2 + 16;
  alignas(64) float room[kArrangedInputs];
  alignas(64) std::uint32_t words[kFloatTileRows * kStride];
  const auto tile_at = [&](std::int64_t input) HWY_ATTR {
    return to.words + to.tile_offset(first, input) / std::int64_t{sizeof(std::uint32_t)};
  };
  for (std::int64_t begin = given.begin; begin < given.end; begin += kArrangedInputs) {
    const std::int64_t count = std::min(kArrangedInputs, given.end - begin);
    const std::int64_t padded = round_up(count, kInputBlock);
    for (std::int64_t r = 0; r < given.rows; ++r) {
      const float* const x = make_run(given, {r, begin, count}, Element::kBf16, room);
      if (to.group_sums != nullptr) {
        sum_groups(to, x, {first + r, begin, count});
      }
      for (std::int64_t i = 0; i < padded; i += kInputBlock) {
        pair_inputs(x + i, to.blocks.tiled ? tile_at(begin + i) + r * kBlockWords
                                           : words + r * kStride + i / 2);
      }
    }
    if (!to.blocks.tiled) {
      interleave_rows(words, kStride, static_cast<int>(given.rows), padded / 2,
                      to.words + first * to.row_words() + begin / 2 * given.rows);
      continue;
    }
    for (std::int64_t i = 0; i < padded; i += kInputBlock) {
      std::fill_n(tile_at(begin + i) + given.rows * kBlockWords,
                  (kTileRows16 - given.rows) * kBlockWords, 0U);
    }
  }
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

// Returns up to how many rows are multiplied as single f32: with so few, memory is the limit, and
// making pairs of the weights would cost more than it saves. 2:4 weights are pairs.
std::int64_t most_single_rows(const WeightFormat& format) {
  return format.kind == WeightKind::kTwoOfFour ? 0 : 2;
}

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

MatmulRows place_rows(std::int64_t count, const PackedMatrix& weights, std::span<std::byte> memory,
                      MatmulIsa isa) {
  const WeightFormat& format = weights.format;
  check(!format.int8_inputs(), "weights with int8_inputs() are multiplied with Int8Rows");
  MatmulRows rows{.inputs = weights.inputs, .isa = isa_for(format, isa), .blocks = {.rows = count}};
  rows.blocks.tiled = has_tiles(rows.isa);
  const std::int64_t most =
      rows.blocks.tiled ? kTileRows16 : HWY_DYNAMIC_DISPATCH(float_tile_rows)();
  rows.blocks.count = ceil_div(count, most);
  if (rows.isa == MatmulIsa::kVector ||
      (rows.isa == MatmulIsa::kDot && count <= most_single_rows(format))) {
    return rows;
  }
  check(std::ssize(memory) >= arranged_rows_bytes(count, rows.inputs),
        "the memory is large enough for the rows");
  rows.words = reinterpret_cast<std::uint32_t*>(memory.data());
  if (rows.blocks.tiled && format.quantized() && !format.symmetric) {
    rows.group = format.group;
    rows.group_sums =
        reinterpret_cast<float*>(rows.words + rows.blocks.stored_rows() * rows.row_words());
  }
  return rows;
}

MatmulRows arrange_rows(Team& team, std::span<const float> x, const PackedMatrix& weights,
                        std::span<std::byte> memory, MatmulIsa isa) {
  const std::int64_t inputs = weights.inputs;
  const std::int64_t count = std::ssize(x) / inputs;
  check(std::ssize(x) == count * inputs, "x is not rows of the matrix's inputs");
  MatmulRows rows = place_rows(count, weights, memory, isa);
  rows.x = x.data();
  if (rows.words == nullptr) {
    return rows;
  }
  arrange_blocks(team, rows.blocks, inputs, 1, [&](std::int64_t block, std::int64_t) {
    const std::int64_t first = rows.blocks.begin(block);
    const BlockInputs given{.x = rows.x + first * inputs,
                            .stride = inputs,
                            .rows = rows.blocks.begin(block + 1) - first,
                            .end = inputs};
    HWY_DYNAMIC_DISPATCH(arrange)(rows, given, first);
  });
  return rows;
}

void gate_rows(const GatedOutputs& outputs, const MatmulRows& to) {
  each_gated_block(outputs, to.blocks, [&](std::int64_t first, const BlockInputs& inputs) {
    HWY_DYNAMIC_DISPATCH(arrange)(to, inputs, first);
  });
}

}  // namespace protean::cpu
#endif

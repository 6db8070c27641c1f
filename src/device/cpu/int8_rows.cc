#include "device/cpu/int8_rows.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/dot.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/int8_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/elementwise-inl.h"
#include "device/cpu/interleave-inl.h"
#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

#ifndef PROTEAN_DEVICE_CPU_INT8_ROWS_ONCE
#define PROTEAN_DEVICE_CPU_INT8_ROWS_ONCE

namespace protean::cpu {

// The destination of the rows of a block.
struct BlockTo {
  std::uint32_t* words = nullptr;
  float* scales = nullptr;  // the first group's, like totals
  std::int32_t* totals = nullptr;
};

}  // namespace protean::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr std::int64_t kMostGroup = 128;
// Inputs of a row that are quantised at once, so that those of all rows of a block stay in L1.
constexpr std::int64_t kRunInputs = 1024;
static_assert(kRunInputs % kMostGroup == 0);

// Returns the scale of a group: 0 if all inputs are 0, NaN if one is not finite. Compares
// magnitudes as integers, which have the same order, with infinities and NaNs above all finite
// values.
HWY_INLINE float group_scale(const float* x, std::int64_t padded, int largest_code) {
  const Floats floats;
  const Words words;
  const auto magnitude = hn::Set(words, 0x7fffffffU);
  auto largest = hn::Zero(words);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const auto bits = hn::BitCast(words, hn::LoadU(floats, x + i));
    largest = hn::Max(largest, hn::And(bits, magnitude));
  }
  const std::uint32_t most = hn::GetLane(hn::MaxOfLanes(words, largest));
  constexpr std::uint32_t kInfinity = 0x7f800000U;
  return most < kInfinity ? std::bit_cast<float>(most) / static_cast<float>(largest_code)
                          : std::numeric_limits<float>::quiet_NaN();
}

// Packs the lower 16 bits of each code; of each four inputs first the even ones, then the odd ones.
inline void pack_w8(const std::uint32_t* codes, std::int64_t padded, std::uint32_t* words) {
  for (std::int64_t i = 0; i < padded; i += 2) {
    const std::uint32_t* const from = codes + i - i % 4 / 2;
    words[i / 2] = (from[0] & 0xffffU) | (from[2] << 16);
  }
}

// Reorders each eight bytes: first the even ones, then the odd ones.
inline void part_w4(std::int64_t padded, std::uint32_t* words) {
  const hn::CappedTag<std::uint64_t, 4> eights;  // a group has at least 32 inputs
  auto* const of = reinterpret_cast<std::uint64_t*>(words);
  for (std::int64_t i = 0; i < padded / 8; i += static_cast<std::int64_t>(hn::Lanes(eights))) {
    auto eight = hn::LoadU(eights, of + i);
    const auto bytes = hn::And(hn::Xor(eight, hn::ShiftRight<8>(eight)),
                               hn::Set(eights, std::uint64_t{0x0000ff000000ff00U}));
    eight = hn::Xor(eight, hn::Xor(bytes, hn::ShiftLeft<8>(bytes)));
    const auto pairs = hn::And(hn::Xor(eight, hn::ShiftRight<16>(eight)),
                               hn::Set(eights, std::uint64_t{0x00000000ffff0000U}));
    eight = hn::Xor(eight, hn::Xor(pairs, hn::ShiftLeft<16>(pairs)));
    hn::StoreU(eight, eights, of + i);
  }
}

// Writes the words of one group, which is padded with zeros. Returns the sum of its integers.
HWY_INLINE std::int32_t quantize_group(const Int8Rows& all, const float* x, std::int64_t padded,
                                       float scale, std::uint32_t* words) {
  const Floats floats;
  const Words lanes;
  const hn::Rebind<std::uint8_t, Floats> bytes;
  // A smaller scale has no finite inverse.
  constexpr float kLeast = std::numeric_limits<float>::min() * 4;
  if (!(scale >= kLeast)) {  // also if the scale is NaN
    std::fill_n(words, padded / all.word_inputs(), all.middle() * kEachByte);
    return 0;
  }
  // Adding this leaves the code, plus the middle, in the lowest bits.
  const float whole = kNoFraction + static_cast<float>(all.middle());
  const auto inverse = hn::Set(floats, 1.0f / scale);
  auto total = hn::Zero(lanes);
  const auto each = [&](const auto& store) HWY_ATTR {
    for (std::int64_t i = 0; i < padded; i += kLanes) {
      const auto scaled = hn::Mul(hn::LoadU(floats, x + i), inverse);
      const auto code = hn::BitCast(lanes, hn::Add(scaled, hn::Set(floats, whole)));
      total = hn::Add(total, code);
      store(code, i);
    }
  };
  if (all.word_inputs() == 4) {
    auto* const to = reinterpret_cast<std::uint8_t*>(words);
    each([&](auto code, std::int64_t i)
             HWY_ATTR { hn::StoreU(hn::TruncateTo(bytes, code), bytes, to + i); });
    if (all.format.kind == WeightKind::kW4) {
      part_w4(padded, words);
    }
  } else {
    alignas(64) std::uint32_t codes[kMostGroup];
    each([&](auto code, std::int64_t i) HWY_ATTR { hn::StoreU(code, lanes, codes + i); });
    pack_w8(codes, padded, words);
  }
  // Subtracts the constants that were added to the integers, the same number of times in each lane.
  const auto above = hn::Set(
      lanes, static_cast<std::uint32_t>(padded / kLanes) * std::bit_cast<std::uint32_t>(whole));
  return hn::GetLane(hn::SumOfLanes(Ints(), hn::BitCast(Ints(), hn::Sub(total, above))));
}

constexpr std::int64_t kStepWords = kTileBytes / 4;

// Distributes the words of a row over the steps of a group, each of which has its own tile.
inline void scatter_steps(const std::uint32_t* words, std::int64_t count, std::uint32_t* to) {
  for (std::int64_t i = 0; i < count; i += kStepWords, to += kTileRows16 * kStepWords) {
    const std::int64_t some = std::min(kStepWords, count - i);
    std::fill(std::copy_n(words + i, some, to), to + kStepWords, 0U);
  }
}

// Returns the most rows of a block, which is a tile of the product.
std::int64_t most_block_rows(const Int8Rows& rows) {
  const bool two_words = rows.format.kind == WeightKind::kW4 || rows.middle() != 0;
  return rows.blocks.tiled ? kTileRows16 : most_integer_rows(two_words);
}

// Writes the scales, sums and words of a run. Words are consecutive for vectors and distributed
// over steps for tiles.
inline void quantize_run(const Int8Rows& all, const float* x, const RowRun& run,
                         const BlockTo& to) {
  const std::int64_t end = (run.begin + run.count + all.format.group - 1) / all.format.group;
  std::uint32_t* words = to.words;
  for (std::int64_t group = run.begin / all.format.group; group < end; ++group) {
    const std::int64_t padded = all.group_inputs(group);
    const float scale = group_scale(x, padded, all.largest_code());
    const std::int64_t at = group * all.blocks.rows + run.row;
    to.scales[at] = scale;
    if (all.blocks.tiled) {
      alignas(64) std::uint32_t codes[kMostGroup / 4];
      to.totals[at] = quantize_group(all, x, padded, scale, codes);
      scatter_steps(codes, padded / 4,
                    to.words + (group * all.group_steps() * kTileRows16 + run.row) * kStepWords);
    } else {
      to.totals[at] = quantize_group(all, x, padded, scale, words);
      words += padded / all.word_inputs();
    }
    x += padded;
  }
}

// Fills the unused rows of the last tile with zeros.
void clear_steps(const Int8Rows& all, const BlockInputs& given, std::uint32_t* words) {
  const std::int64_t inputs_of_step = std::min(all.format.group, kTileInt8s);
  for (std::int64_t at = given.begin; at < given.end; at += inputs_of_step) {
    std::uint32_t* const step = words + at / inputs_of_step * kTileRows16 * kStepWords;
    std::fill(step + given.rows * kStepWords, step + kTileRows16 * kStepWords, 0U);
  }
}

// Quantises one run of each row, then the next run, so that the data in use stay in the cache.
void quantize_block(const Int8Rows& all, const BlockInputs& given, const BlockTo& to) {
  // One more cache line between rows keeps them from competing for the same lines.
  constexpr std::int64_t kStride = kRunInputs / 2 + 16;
  alignas(64) float room[kRunInputs];
  alignas(64) std::uint32_t words[most_integer_rows(false) * kStride];
  float norm_scales[kTileRows16] = {};
  for (std::int64_t begin = given.begin; begin < given.end; begin += kRunInputs) {
    const std::int64_t count = std::min(kRunInputs, given.end - begin);
    for (std::int64_t r = 0; r < given.rows; ++r) {
      if (begin == given.begin && !given.norm.weight.empty()) {
        norm_scales[r] =
            norm_scale(given.x + r * given.stride, given.norm.weight.size(), given.norm.eps);
      }
      const RowRun run{r, begin, count, norm_scales[r]};
      quantize_run(all, make_run(given, run, Element::kF32, room), run,
                   {all.blocks.tiled ? to.words : words + r * kStride, to.scales, to.totals});
    }
    if (!all.blocks.tiled) {
      const std::int64_t row_words =
          round_up<std::int64_t>(count, PackedMatrix::kInputBlock) / all.word_inputs();
      interleave_rows(words, kStride, static_cast<int>(given.rows), row_words,
                      to.words + begin / all.word_inputs() * given.rows);
    }
  }
  if (all.blocks.tiled) {
    clear_steps(all, given, to.words);
  }
}

std::int64_t run_inputs() {
  return kRunInputs;
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(most_block_rows);
HWY_EXPORT(run_inputs);
HWY_EXPORT(quantize_block);

// From this many rows on, AMX is faster although its tiles have 16 rows: vectors are slower than
// memory.
constexpr std::int64_t kLeastTiledRows = 8;

MatmulIsa isa_for(std::int64_t rows, MatmulIsa wanted) {
  if (wanted != MatmulIsa::kBest) {
    return wanted;
  }
  return rows >= kLeastTiledRows && amx_available() ? MatmulIsa::kAmx
         : byte_dot_available()                     ? MatmulIsa::kDot
                                                    : MatmulIsa::kVector;
}

BlockTo block_at(const Int8Rows& rows, std::int64_t first_row) {
  return {rows.words + first_row * rows.row_words(), rows.scales + first_row,
          rows.totals + first_row};
}

}  // namespace

Int8Rows place_int8_rows(std::int64_t count, const PackedMatrix& weights,
                         std::span<std::byte> memory, MatmulIsa isa) {
  const WeightFormat& format = weights.format;
  check(format.int8_inputs() && (format.kind == WeightKind::kW8 || format.kind == WeightKind::kW4),
        "these weights are multiplied with integers");
  Int8Rows rows{.inputs = weights.inputs,
                .format = format,
                .isa = isa_for(count, isa),
                .blocks = {.rows = count}};
  rows.blocks.tiled = has_tiles(rows.isa);
  rows.blocks.count = ceil_div(count, HWY_DYNAMIC_DISPATCH(most_block_rows)(rows));
  check(std::ssize(memory) >= arranged_rows_bytes(count, rows.inputs),
        "the memory is large enough for the rows");
  rows.words = reinterpret_cast<std::uint32_t*>(memory.data());
  rows.scales = reinterpret_cast<float*>(rows.words + rows.blocks.stored_rows() * rows.row_words());
  rows.totals = reinterpret_cast<std::int32_t*>(rows.scales + count * rows.groups());
  return rows;
}

Int8Rows quantize_rows(Team& team, const RowSource& source, const PackedMatrix& weights,
                       std::span<std::byte> memory, MatmulIsa isa) {
  const std::int64_t count = std::ssize(source.x) / weights.inputs;
  check(std::ssize(source.x) == count * weights.inputs, "x is not rows of the matrix's inputs");
  check(!source.made() || std::ssize(source.norm.weight) == weights.inputs,
        "a norm has a weight for each input");
  const Int8Rows rows = place_int8_rows(count, weights, memory, isa);
  // Blocks are few, so their runs are tasks too. With a norm a block is one task, since each run
  // would need the whole row.
  const std::int64_t inputs = source.made() ? rows.inputs : HWY_DYNAMIC_DISPATCH(run_inputs)();
  const std::int64_t runs = ceil_div(rows.inputs, inputs);
  arrange_blocks(team, rows.blocks, rows.inputs, runs, [&](std::int64_t block, std::int64_t run) {
    const std::int64_t first = rows.blocks.begin(block);
    const BlockInputs given{.x = source.x.data() + first * rows.inputs + run * inputs,
                            .stride = rows.inputs,
                            .norm = source.norm,
                            .rows = rows.blocks.begin(block + 1) - first,
                            .begin = run * inputs,
                            .end = std::min(rows.inputs, (run + 1) * inputs)};
    HWY_DYNAMIC_DISPATCH(quantize_block)(rows, given, block_at(rows, first));
  });
  return rows;
}

void gate_rows(const GatedOutputs& outputs, const Int8Rows& to) {
  each_gated_block(outputs, to.blocks, [&](std::int64_t first, const BlockInputs& inputs) {
    HWY_DYNAMIC_DISPATCH(quantize_block)(to, inputs, block_at(to, first));
  });
}

}  // namespace protean::cpu
#endif

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

// Where the results of the rows of a block go.
struct BlockTo {
  std::uint32_t* words = nullptr;
  float* scales = nullptr;  // of the first group, as totals
  std::int32_t* totals = nullptr;
};

// Some inputs of the rows of a block, and what they are made of: x as it is or under a norm, or,
// where there is an `up`, silu(x) * up.
struct BlockPart {
  const float* x = nullptr;   // the first of these inputs in the first row
  const float* up = nullptr;  // the same
  std::int64_t stride = 0;    // from row to row
  RmsNorm norm = {};          // then all of a row's inputs are wanted
  std::int64_t rows = 0;
  std::int64_t begin = 0;  // of a run
  std::int64_t end = 0;

  bool made() const { return up != nullptr || !norm.weight.empty(); }
};

}  // namespace protean::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr std::int64_t kMostGroup = 128;
// Of a row at a time: what a block has of its rows then stays in L1.
constexpr std::int64_t kRunInputs = 1024;
static_assert(kRunInputs % kMostGroup == 0);

// 0 for a group without weight, NaN where something is not finite: as whole numbers, magnitudes are
// in their own order, and what is not finite is above all others.
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

// Of each four inputs the even ones, then the odd ones: the lower 16 bits of each.
inline void pack_w8(const std::uint32_t* codes, std::int64_t padded, std::uint32_t* words) {
  for (std::int64_t i = 0; i < padded; i += 2) {
    const std::uint32_t* const from = codes + i - i % 4 / 2;
    words[i / 2] = (from[0] & 0xffffU) | (from[2] << 16);
  }
}

// Of each eight bytes the even ones, then the odd ones.
inline void part_w4(std::int64_t padded, std::uint32_t* words) {
  const hn::CappedTag<std::uint64_t, 4> eights;  // groups are of 32 at least
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

// The integers of one group, which is padded with zeros, as words, and what they add up to.
HWY_INLINE std::int32_t quantize_group(const Int8Rows& all, const float* x, std::int64_t padded,
                                       float scale, std::uint32_t* words) {
  const Floats floats;
  const Words lanes;
  const hn::Rebind<std::uint8_t, Floats> bytes;
  // What is smaller than this has no inverse that is finite.
  constexpr float kLeast = std::numeric_limits<float>::min() * 4;
  if (!(scale >= kLeast)) {  // or NaN, which the scale says
    std::fill_n(words, padded / all.word_inputs(), all.middle() * kEachByte);
    return 0;
  }
  // So large that the code stands in the lowest bits, as far above itself as it is stored.
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
  // Less what stands above the integers, of which each lane has had as many.
  const auto above = hn::Set(
      lanes, static_cast<std::uint32_t>(padded / kLanes) * std::bit_cast<std::uint32_t>(whole));
  return hn::GetLane(hn::SumOfLanes(Ints(), hn::BitCast(Ints(), hn::Sub(total, above))));
}

constexpr std::int64_t kStepWords = kTileBytes / 4;

// A row of a tile in every step of a group.
inline void scatter_steps(const std::uint32_t* words, std::int64_t count, std::uint32_t* to) {
  for (std::int64_t i = 0; i < count; i += kStepWords, to += kTileRows16 * kStepWords) {
    const std::int64_t part = std::min(kStepWords, count - i);
    std::fill(std::copy_n(words + i, part, to), to + kStepWords, 0U);
  }
}

// A block is a tile of the product.
std::int64_t most_block_rows(const Int8Rows& rows) {
  const bool two_words = rows.format.kind == WeightKind::kW4 || rows.middle() != 0;
  return rows.blocks.tiled ? kTileRows16 : most_integer_rows(two_words);
}

// Some inputs of a row of a block, from a group's first one on.
struct RowRun {
  std::int64_t row = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  float norm_scale = 0;  // where there is a norm
};

// Where they lie, or where they were made: then padded with zeros to whole blocks of the matrix.
HWY_INLINE const float* make_run(const BlockPart& part, const RowRun& run, float* room) {
  const std::int64_t at = run.row * part.stride + run.begin - part.begin;
  const float* const x = part.x + at;
  const std::int64_t padded = round_up<std::int64_t>(run.count, PackedMatrix::kInputBlock);
  if (!part.made() && padded == run.count) {
    return x;
  }
  const auto count = static_cast<std::size_t>(run.count);
  if (part.up != nullptr) {
    swiglu_run(x, part.up + at, count, Element::kF32, room);
  } else if (part.made()) {
    norm_run(x, part.norm.weight.subspan(static_cast<std::size_t>(run.begin), count),
             run.norm_scale, Element::kF32, room);
  } else {
    std::copy_n(x, count, room);
  }
  std::fill(room + run.count, room + padded, 0.0f);
  return room;
}

// A row's scales and sums, and its words one after another, or, for tiles, where they belong.
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

// What the last rows of a tile lack.
void clear_steps(const Int8Rows& all, const BlockPart& part, std::uint32_t* words) {
  const std::int64_t inputs_of_step = std::min(all.format.group, kTileInt8s);
  for (std::int64_t at = part.begin; at < part.end; at += inputs_of_step) {
    std::uint32_t* const step = words + at / inputs_of_step * kTileRows16 * kStepWords;
    std::fill(step + part.rows * kStepWords, step + kTileRows16 * kStepWords, 0U);
  }
}

// A run of each row, then the next one: what is made or read of them is read while it is near.
void quantize_block(const Int8Rows& all, const BlockPart& part, const BlockTo& to) {
  // Between two rows a line more, or by a power of two they would fight for the same lines.
  constexpr std::int64_t kStride = kRunInputs / 2 + 16;
  alignas(64) float room[kRunInputs];
  alignas(64) std::uint32_t words[most_integer_rows(false) * kStride];
  float norm_scales[kTileRows16] = {};
  for (std::int64_t begin = part.begin; begin < part.end; begin += kRunInputs) {
    const std::int64_t count = std::min(kRunInputs, part.end - begin);
    for (std::int64_t r = 0; r < part.rows; ++r) {
      if (begin == part.begin && !part.norm.weight.empty()) {
        norm_scales[r] =
            norm_scale(part.x + r * part.stride, part.norm.weight.size(), part.norm.eps);
      }
      const RowRun run{r, begin, count, norm_scales[r]};
      quantize_run(all, make_run(part, run, room), run,
                   {all.blocks.tiled ? to.words : words + r * kStride, to.scales, to.totals});
    }
    if (!all.blocks.tiled) {
      const std::int64_t row_words =
          round_up<std::int64_t>(count, PackedMatrix::kInputBlock) / all.word_inputs();
      interleave_rows(words, kStride, static_cast<int>(part.rows), row_words,
                      to.words + begin / all.word_inputs() * part.rows);
    }
  }
  if (all.blocks.tiled) {
    clear_steps(all, part, to.words);
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

// From so many rows on AMX is worth its tiles of 16: vectors no longer keep up with memory.
constexpr std::int64_t kLeastTiledRows = 8;

MatmulUnit unit_for(std::int64_t rows, MatmulUnit wanted) {
  if (wanted != MatmulUnit::kBest) {
    return wanted;
  }
  return rows >= kLeastTiledRows && amx_available() ? MatmulUnit::kAmx
         : byte_dot_available()                     ? MatmulUnit::kDot
                                                    : MatmulUnit::kVector;
}

BlockTo block_at(const Int8Rows& rows, std::int64_t first_row) {
  return {rows.words + first_row * rows.row_words(), rows.scales + first_row,
          rows.totals + first_row};
}

}  // namespace

Int8Rows place_int8_rows(std::int64_t count, const PackedMatrix& weights,
                         std::span<std::byte> memory, MatmulUnit unit) {
  const WeightFormat& format = weights.format;
  check(format.int8_inputs() && (format.kind == WeightKind::kW8 || format.kind == WeightKind::kW4),
        "these weights are multiplied with integers");
  Int8Rows rows{.inputs = weights.inputs,
                .format = format,
                .unit = unit_for(count, unit),
                .blocks = {.rows = count}};
  rows.blocks.tiled = has_tiles(rows.unit);
  rows.blocks.count = ceil_div(count, HWY_DYNAMIC_DISPATCH(most_block_rows)(rows));
  check(std::ssize(memory) >= arranged_rows_bytes(count, rows.inputs), "rows fit their memory");
  rows.words = reinterpret_cast<std::uint32_t*>(memory.data());
  rows.scales = reinterpret_cast<float*>(rows.words + rows.blocks.stored_rows() * rows.row_words());
  rows.totals = reinterpret_cast<std::int32_t*>(rows.scales + count * rows.groups());
  return rows;
}

Int8Rows quantize_rows(Team& team, const RowSource& source, const PackedMatrix& weights,
                       std::span<std::byte> memory, MatmulUnit unit) {
  const std::int64_t count = std::ssize(source.x) / weights.inputs;
  check(std::ssize(source.x) == count * weights.inputs, "x is not rows of the matrix's inputs");
  check(!source.made() || std::ssize(source.norm.weight) == weights.inputs,
        "a norm has a weight for each input");
  const Int8Rows rows = place_int8_rows(count, weights, memory, unit);
  // Runs side by side, for blocks are few; under a norm each would have to look at all of a row.
  const std::int64_t inputs = source.made() ? rows.inputs : HWY_DYNAMIC_DISPATCH(run_inputs)();
  const std::int64_t runs = ceil_div(rows.inputs, inputs);
  arrange_blocks(team, rows.blocks, rows.inputs, runs, [&](std::int64_t block, std::int64_t run) {
    const std::int64_t first = rows.blocks.begin(block);
    const BlockPart part{.x = source.x.data() + first * rows.inputs + run * inputs,
                         .stride = rows.inputs,
                         .norm = source.norm,
                         .rows = rows.blocks.begin(block + 1) - first,
                         .begin = run * inputs,
                         .end = std::min(rows.inputs, (run + 1) * inputs)};
    HWY_DYNAMIC_DISPATCH(quantize_block)(rows, part, block_at(rows, first));
  });
  return rows;
}

void gate_rows(const GatedPart& part, const Int8Rows& to) {
  const std::int64_t end = part.first_row + part.rows;
  std::int64_t first = part.first_row;
  for (std::int64_t block = to.blocks.at(first); first < end; ++block) {
    const std::int64_t row = first - part.first_row;
    const std::int64_t next = to.blocks.begin(block + 1);
    const BlockPart of_block{.x = part.gate + row * part.stride,
                             .up = part.up + row * part.stride,
                             .stride = part.stride,
                             .rows = next - first,
                             .begin = part.first_input,
                             .end = part.first_input + part.inputs};
    HWY_DYNAMIC_DISPATCH(quantize_block)(to, of_block, block_at(to, first));
    first = next;
  }
}

}  // namespace protean::cpu
#endif

#include "device/cpu/int8_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/dot.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/int8_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/interleave-inl.h"
#include "device/cpu/lanes-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef PROTEAN_DEVICE_CPU_INT8_ROWS_ONCE
#define PROTEAN_DEVICE_CPU_INT8_ROWS_ONCE

namespace protean::cpu {

// Where the results of the rows of a block go.
struct BlockTo {
  std::uint32_t* words = nullptr;
  float* scales = nullptr;
  std::int32_t* totals = nullptr;
};

}  // namespace protean::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

constexpr std::int64_t kMostGroup = 128;

// 0 for a group without weight, NaN where something is not finite.
inline float group_scale(const float* x, std::int64_t padded, int largest_code) {
  const Floats floats;
  auto largest = hn::Zero(floats);
  auto finite = hn::Zero(floats);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const Vec v = hn::LoadU(floats, x + i);
    largest = hn::Max(largest, hn::Abs(v));
    finite = hn::MulAdd(v, hn::Zero(floats), finite);
  }
  const float zero_or_nan = hn::GetLane(hn::SumOfLanes(floats, finite));
  return hn::GetLane(hn::MaxOfLanes(floats, largest)) / static_cast<float>(largest_code) +
         zero_or_nan;
}

// The integers of one group, which is padded with zeros, and what they add up to.
inline std::int32_t round_group(const float* x, std::int64_t padded, float scale,
                                std::int32_t* codes) {
  const Floats floats;
  const hn::RebindToSigned<Floats> ints;
  // What is smaller than this has no inverse that is finite.
  constexpr float kLeast = std::numeric_limits<float>::min() * 4;
  if (!(scale >= kLeast)) {  // or NaN, which the scale says
    std::fill_n(codes, padded, 0);
    return 0;
  }
  const auto inverse = hn::Set(floats, 1.0f / scale);
  auto total = hn::Zero(ints);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const auto code = hn::NearestInt(hn::Mul(hn::LoadU(floats, x + i), inverse));
    hn::StoreU(code, ints, codes + i);
    total = hn::Add(total, code);
  }
  return hn::GetLane(hn::SumOfLanes(ints, total));
}

inline std::uint32_t field(std::int32_t code, int bits, int place) {
  return (static_cast<std::uint32_t>(code) & ((1U << bits) - 1U)) << (bits * place);
}

// Of each four inputs the even ones, then the odd ones.
inline void pack_w8(const std::int32_t* codes, std::int64_t padded, std::uint32_t* words) {
  for (std::int64_t i = 0; i < padded; i += 2) {
    const std::int32_t* const from = codes + i - i % 4 / 2;
    words[i / 2] = field(from[0], 16, 0) | field(from[2], 16, 1);
  }
}

inline void pack_bytes(const std::int32_t* codes, std::int64_t padded, std::uint32_t* words) {
  const hn::RebindToSigned<Floats> ints;
  const hn::Rebind<std::int8_t, Floats> bytes;
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    hn::StoreU(hn::DemoteTo(bytes, hn::LoadU(ints, codes + i)), bytes,
               reinterpret_cast<std::int8_t*>(words) + i);
  }
}

// Of each eight inputs the even ones, then the odd ones.
inline void pack_w4(const std::int32_t* codes, std::int64_t padded, std::uint32_t* words) {
  pack_bytes(codes, padded, words);
  for (std::int64_t i = 0; i < padded / 4; i += 2) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, words + i, sizeof(eight));
    const std::uint64_t bytes = (eight ^ eight >> 8) & 0x0000ff000000ff00U;
    eight ^= bytes ^ bytes << 8;
    const std::uint64_t pairs = (eight ^ eight >> 16) & 0x00000000ffff0000U;
    eight ^= pairs ^ pairs << 16;
    std::memcpy(words + i, &eight, sizeof(eight));
  }
}

inline void pack_row(const Int8Rows& all, const std::int32_t* codes, std::int64_t padded,
                     std::uint32_t* words) {
  if (all.format.kind == WeightKind::kW4) {
    pack_w4(codes, padded, words);
  } else if (all.fours()) {
    pack_bytes(codes, padded, words);
  } else {
    pack_w8(codes, padded, words);
  }
}

constexpr std::int64_t kStepWords = kTileBytes / 4;

// A row of a tile in every step of a group.
inline void pack_steps(const Int8Rows& all, const std::int32_t* codes, std::int64_t padded,
                       std::uint32_t* to) {
  for (std::int64_t i = 0; i < padded; i += kTileInt8s, to += kTileRows16 * kStepWords) {
    const std::int64_t count = std::min<std::int64_t>(kTileInt8s, padded - i);
    pack_row(all, codes + i, count, to);
    std::fill(to + count / 4, to + kStepWords, 0U);
  }
}

// A block is a tile of the product.
std::int64_t most_block_rows(const Int8Rows& rows) {
  return rows.blocks.tiled ? kTileRows16 : most_integer_rows(rows.format.kind == WeightKind::kW4);
}

void quantize_block(const float* x, const Int8Rows& all, std::int64_t rows, const BlockTo& to) {
  constexpr std::int64_t kLineFloats = 16;
  alignas(64) float padded_x[kMostGroup];
  alignas(64) std::int32_t codes[kMostGroup];
  alignas(64) std::uint32_t words[most_integer_rows(false) * kMostGroup / 2];
  const std::int64_t groups = all.groups();
  std::uint32_t* out = to.words;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t first = group * all.format.group;
    const std::int64_t count = std::min<std::int64_t>(all.format.group, all.inputs - first);
    const std::int64_t padded = all.group_inputs(group);
    const std::int64_t row_words = padded / all.word_inputs();
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* from = x + r * all.inputs + first;
      for (std::int64_t i = 0; i < all.format.group; i += kLineFloats) {
        hwy::Prefetch(from + all.format.group + i);
      }
      if (padded != count) {
        std::fill(std::copy_n(from, count, padded_x), padded_x + padded, 0.0f);
        from = padded_x;
      }
      const float scale = group_scale(from, padded, all.largest_code());
      to.scales[r * groups + group] = scale;
      to.totals[r * groups + group] = round_group(from, padded, scale, codes);
      if (all.blocks.tiled) {
        pack_steps(all, codes, padded, out + r * kStepWords);
      } else {
        pack_row(all, codes, padded, words + r * row_words);
      }
    }
    if (all.blocks.tiled) {
      const std::int64_t steps = ceil_div<std::int64_t>(padded, kTileInt8s);
      for (std::int64_t step = 0; step < steps; ++step, out += kTileRows16 * kStepWords) {
        std::fill(out + rows * kStepWords, out + kTileRows16 * kStepWords, 0U);
      }
    } else {
      interleave_rows(words, row_words, static_cast<int>(rows), row_words, out);
      out += rows * row_words;
    }
  }
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(most_block_rows);
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

}  // namespace

Int8Rows quantize_rows(Team& team, std::span<const float> x, const PackedMatrix& weights,
                       std::span<std::byte> memory, MatmulUnit unit) {
  const WeightFormat& format = weights.format;
  check(format.int8_inputs() && (format.kind == WeightKind::kW8 || format.kind == WeightKind::kW4),
        "these weights are multiplied with integers");
  const std::int64_t count = std::ssize(x) / weights.inputs;
  check(std::ssize(x) == count * weights.inputs, "x is not rows of the matrix's inputs");
  Int8Rows rows{.inputs = weights.inputs,
                .format = format,
                .unit = unit_for(count, unit),
                .blocks = {.rows = count}};
  rows.blocks.tiled = has_tiles(rows.unit);
  rows.blocks.count = ceil_div(count, HWY_DYNAMIC_DISPATCH(most_block_rows)(rows));
  check(std::ssize(memory) >= arranged_rows_bytes(count, rows.inputs), "rows fit their memory");
  auto* const words = reinterpret_cast<std::uint32_t*>(memory.data());
  auto* const scales =
      reinterpret_cast<float*>(words + rows.blocks.stored_rows() * rows.row_words());
  auto* const totals = reinterpret_cast<std::int32_t*>(scales + count * rows.groups());
  rows.words = words;
  rows.scales = scales;
  rows.totals = totals;
  arrange_blocks(team, rows.blocks, rows.inputs, [&](std::int64_t block) {
    const std::int64_t first = rows.blocks.begin(block);
    HWY_DYNAMIC_DISPATCH(quantize_block)
    (x.data() + first * rows.inputs, rows, rows.blocks.begin(block + 1) - first,
     {words + first * rows.row_words(), scales + first * rows.groups(),
      totals + first * rows.groups()});
  });
  return rows;
}

}  // namespace protean::cpu
#endif

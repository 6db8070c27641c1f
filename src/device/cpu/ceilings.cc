#include "device/cpu/ceilings.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "device/cpu/bf16.h"
#include "device/cpu/tile_products.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/ceilings.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/dot-inl.h"
#include "device/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Four streams at once: one alone leaves some of a core's bandwidth unused.
std::uint64_t sum_words(const std::uint64_t* from, std::int64_t count) {
  const hn::ScalableTag<std::uint64_t> words;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(words));
  const std::int64_t quarter = count / 4 / (2 * lanes) * (2 * lanes);
  auto even = hn::Zero(words), odd = even;
  for (std::int64_t i = 0; i < quarter; i += 2 * lanes) {
    HWY_UNROLL(4)
    for (int stream = 0; stream < 4; ++stream) {
      even = hn::Add(even, hn::LoadU(words, from + stream * quarter + i));
      odd = hn::Add(odd, hn::LoadU(words, from + stream * quarter + i + lanes));
    }
  }
  std::uint64_t total = hn::GetLane(hn::SumOfLanes(words, hn::Add(even, odd)));
  for (std::int64_t i = 4 * quarter; i < count; ++i) {
    total += from[i];
  }
  return total;
}

constexpr int kSums = kLanes == 16 ? 24 : 12;
constexpr int kSteps = 64;

// kSums independent chains over vectors that lie in L1; with kDot over pairs of bf16.
template <bool kDot>
MultiplyWork multiply_lanes(const float* values, std::int64_t rounds) {
  const Floats floats;
  Vec sums[kSums];
  HWY_UNROLL(24)
  for (int i = 0; i < kSums; ++i) {
    sums[i] = hn::Set(floats, static_cast<float>(i));  // or they would be one and the same
  }
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int step = 0; step < kSteps; ++step) {
      const Vec a = hn::LoadU(floats, values + step * 16);
      const Vec b = hn::LoadU(floats, values + step * 16 + 8);
      HWY_UNROLL(24)
      for (int i = 0; i < kSums; ++i) {
        if constexpr (kDot) {
          add_bf16_pairs(sums[i], hn::BitCast(Words(), a), hn::BitCast(Words(), b));
        } else {
          sums[i] = hn::MulAdd(a, b, sums[i]);
        }
      }
    }
  }
  Vec sum = sums[0];
  HWY_UNROLL(24)
  for (int i = 1; i < kSums; ++i) {
    sum = hn::Add(sum, sums[i]);
  }
  return {(kDot ? 4.0 : 2.0) * kLanes * kSums * kSteps * static_cast<double>(rounds),
          hn::GetLane(hn::SumOfLanes(floats, sum))};
}

MultiplyWork multiply_singles(const float* values, std::int64_t rounds) {
  return multiply_lanes<false>(values, rounds);
}
MultiplyWork multiply_pairs(const float* values, std::int64_t rounds) {
  return multiply_lanes<true>(values, rounds);
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(sum_words);
HWY_EXPORT(multiply_singles);
HWY_EXPORT(multiply_pairs);

constexpr std::int64_t kValues = 2048;

// Uniform in [-1, 1), the same at every call.
std::vector<float> random_values() {
  std::vector<float> values(kValues);
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  }
  return values;
}

// Two by two tiles of sums, as the matmul has them, over operands of 4 KiB.
template <TileElement kElement, class Tiles>
MultiplyWork multiply_tiles_in_cache(Tiles tiles, const std::vector<float>& values,
                                     std::int64_t rounds) {
  alignas(64) std::uint16_t operands[kValues];
  alignas(64) float sums[16 * 16];  // or integers: their bits will do
  std::transform(values.begin(), values.end(), operands, bf16_from);
  tiles.configure();
  zero_sums(tiles);
  for (std::int64_t round = 0; round < rounds; ++round) {
    tiles.template load<4>(operands, kTileBytes);
    tiles.template load<5>(operands + 512, kTileBytes);
    tiles.template load<6>(operands + 1024, kTileBytes);
    tiles.template load<7>(operands + 1536, kTileBytes);
    add_product<kElement, 0, 4, 6>(tiles);
    add_product<kElement, 1, 4, 7>(tiles);
    add_product<kElement, 2, 5, 6>(tiles);
    add_product<kElement, 3, 5, 7>(tiles);
  }
  tiles.template store<0>(sums, kTileBytes);
  tiles.release();
  constexpr int kInputs = kElement == TileElement::kBf16 ? kTileInputs : kTileInt8s;
  return {4.0 * 2 * 16 * 16 * kInputs * static_cast<double>(rounds), sums[0]};
}

MultiplyWork multiply_with(MatmulUnit unit, bool amx_int8, const std::vector<float>& values,
                           std::int64_t rounds) {
#if HWY_ARCH_X86_64
  if (unit == MatmulUnit::kAmx) {
    return amx_int8 ? multiply_tiles_in_cache<TileElement::kInt8>(AmxTiles(), values, rounds)
                    : multiply_tiles_in_cache<TileElement::kBf16>(AmxTiles(), values, rounds);
  }
#endif
  check(!amx_int8, "AMX is a feature of x86");
  if (unit == MatmulUnit::kDot) {
    std::vector<std::uint16_t> pairs(values.size() * 2);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      pairs[i] = bf16_from(values[i % values.size()]);
    }
    std::vector<float> words(values.size());
    std::memcpy(words.data(), pairs.data(), words.size() * sizeof(float));
    return HWY_DYNAMIC_DISPATCH(multiply_pairs)(words.data(), rounds);
  }
  return HWY_DYNAMIC_DISPATCH(multiply_singles)(values.data(), rounds);
}

}  // namespace

std::uint64_t read_memory(Team& team, std::span<const std::byte> memory) {
  constexpr std::int64_t kPiece = 1 << 20;  // bytes; neighbours are read one after the other
  const auto* const words = reinterpret_cast<const std::uint64_t*>(memory.data());
  const std::int64_t count = std::ssize(memory) / 8;
  const std::int64_t pieces = (count * 8 + kPiece - 1) / kPiece;
  std::atomic<std::uint64_t> total{0};
  team.run(pieces, [&](std::int64_t piece, int) {
    const std::int64_t begin = piece * kPiece / 8;
    const std::int64_t end = std::min(count, begin + kPiece / 8);
    total += HWY_DYNAMIC_DISPATCH(sum_words)(words + begin, end - begin);
  });
  return total;
}

MultiplyWork multiply_in_cache(Team& team, MatmulUnit unit, std::int64_t rounds, bool amx_int8) {
  const std::vector<float> values = random_values();
  MultiplyWork all;
  std::mutex mutex;
  team.run(team.threads(), [&](std::int64_t, int) {
    const MultiplyWork done = multiply_with(unit, amx_int8, values, rounds);
    const std::lock_guard lock(mutex);
    all.operations += done.operations;
    all.checksum += done.checksum;
  });
  return all;
}

}  // namespace protean::cpu
#endif

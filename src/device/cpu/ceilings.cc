#include "device/cpu/ceilings.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "device/cpu/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/ceilings.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants its own headers after foreach_target.h.
#include "device/cpu/dot-inl.h"
#include "device/cpu/lanes-inl.h"
#include "device/cpu/tile_products-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace protean::cpu::HWY_NAMESPACE {

// Sums four streams at once, since one stream does not use the whole bandwidth of a core.
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

// Runs kSums independent chains of multiply-adds over vectors in L1; with kDot over pairs of bf16.
template <bool kDot>
MultiplyWork multiply_lanes(const float* values, std::int64_t rounds) {
  const Floats floats;
  Vec sums[kSums];
  HWY_UNROLL(24)
  for (int i = 0; i < kSums; ++i) {
    sums[i] =
        hn::Set(floats, static_cast<float>(i));  // different, so that compilers keep all chains
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

constexpr std::int64_t kTileSteps = 8;
constexpr std::int64_t kTileWords = 2 * kTileSteps * kTileMemory / 4;  // words of two tiles of rows

// Computes two by two tiles of sums, like a matmul, over `words` of rows and as many of weights.
template <TileElement kElement, class Tiles>
MultiplyWork multiply_tiles_near(Tiles& tiles, const std::uint32_t* words, std::int64_t rounds,
                                 OperandsIn operands) {
  alignas(64) float sums[16 * 16];  // or integers: their bits will do
  TileSteps from{.x = words,
                 .x_stride = kTileSteps * kTileMemory,
                 .weights = words + kTileWords,
                 .steps = kTileSteps};
  zero_sums(tiles);
  multiply_steps<true, kElement>(tiles, from, [] {});  // fills the other tiles too
  for (std::int64_t round = 0; round < rounds; ++round) {
    if (operands == OperandsIn::kCache) {
      multiply_steps<true, kElement>(tiles, from, [] {});
      continue;
    }
    for (std::int64_t step = 0; step < kTileSteps; ++step) {
      add_product<kElement, 0, 4, 6>(tiles);
      add_product<kElement, 1, 4, 7>(tiles);
      add_product<kElement, 2, 5, 6>(tiles);
      add_product<kElement, 3, 5, 7>(tiles);
    }
  }
  tiles.template store<0>(sums, kTileBytes);
  constexpr int kInputs = kElement == TileElement::kBf16 ? kTileInputs : kTileInt8s;
  return {4.0 * kTileSteps * 2 * 16 * 16 * kInputs * static_cast<double>(rounds), sums[0]};
}

MultiplyWork multiply_tiles(const std::uint32_t* words, std::int64_t rounds, OperandsIn operands) {
  MultiplyWork work;
  with_tiles(false, [&](auto& tiles) {
    work = multiply_tiles_near<TileElement::kBf16>(tiles, words, rounds, operands);
  });
  return work;
}
MultiplyWork multiply_int8_tiles(const std::uint32_t* words, std::int64_t rounds,
                                 OperandsIn operands) {
  MultiplyWork work;
  with_tiles(false, [&](auto& tiles) {
    work = multiply_tiles_near<TileElement::kInt8>(tiles, words, rounds, operands);
  });
  return work;
}

std::int64_t tile_words() {
  return 2 * kTileWords;
}

}  // namespace protean::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace protean::cpu {
namespace {

HWY_EXPORT(sum_words);
HWY_EXPORT(multiply_singles);
HWY_EXPORT(multiply_pairs);
HWY_EXPORT(multiply_tiles);
HWY_EXPORT(multiply_int8_tiles);
HWY_EXPORT(tile_words);

// Returns numbers uniform in [-1, 1), the same at every call.
std::vector<float> random_values(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  }
  return values;
}

// Random pairs of bf16 that begin at a cache line.
class RandomPairs {
 public:
  explicit RandomPairs(std::int64_t words) : memory_(static_cast<std::size_t>(words) + kLine) {
    const std::vector<float> values = random_values(2 * words);
    void* at = memory_.data();
    std::size_t bytes = memory_.size() * 4;
    words_ =
        static_cast<std::uint32_t*>(std::align(64, static_cast<std::size_t>(words) * 4, at, bytes));
    for (std::int64_t i = 0; i < words; ++i) {
      const auto pair = static_cast<std::size_t>(2 * i);
      words_[i] = bf16_from(values[pair]) | std::uint32_t{bf16_from(values[pair + 1])} << 16;
    }
  }
  const std::uint32_t* words() const { return words_; }

 private:
  static constexpr std::size_t kLine = 16;

  std::vector<std::uint32_t> memory_;
  std::uint32_t* words_ = nullptr;
};

template <class Work>
MultiplyWork on_every_thread(Team& team, const Work& work) {
  MultiplyWork all;
  std::mutex mutex;
  team.run(team.threads(), [&](std::int64_t, int) {
    const MultiplyWork done = work();
    const std::lock_guard lock(mutex);
    all.operations += done.operations;
    all.checksum += done.checksum;
  });
  return all;
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

MultiplyWork multiply_near(Team& team, MatmulIsa isa, std::int64_t rounds, OperandsIn operands) {
  constexpr std::int64_t kValues = 2048;
  check(isa == MatmulIsa::kAmx || operands == OperandsIn::kCache, "only AMX has tiles");
  const RandomPairs pairs(isa == MatmulIsa::kAmx ? HWY_DYNAMIC_DISPATCH(tile_words)() : kValues);
  const std::vector<float> values = random_values(kValues);
  return on_every_thread(team, [&] {
    switch (isa) {
      case MatmulIsa::kAmx:
        return HWY_DYNAMIC_DISPATCH(multiply_tiles)(pairs.words(), rounds, operands);
      case MatmulIsa::kDot:
        return HWY_DYNAMIC_DISPATCH(multiply_pairs)(reinterpret_cast<const float*>(pairs.words()),
                                                    rounds);
      default:
        return HWY_DYNAMIC_DISPATCH(multiply_singles)(values.data(), rounds);
    }
  });
}

MultiplyWork multiply_int8_near(Team& team, std::int64_t rounds, OperandsIn operands) {
  const RandomPairs pairs(HWY_DYNAMIC_DISPATCH(tile_words)());
  return on_every_thread(team, [&] {
    return HWY_DYNAMIC_DISPATCH(multiply_int8_tiles)(pairs.words(), rounds, operands);
  });
}

}  // namespace protean::cpu
#endif

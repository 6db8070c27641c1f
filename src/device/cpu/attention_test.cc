#include "device/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/repetitions_for_test.h"
#include "device/cpu/bf16.h"
#include "device/cpu/dot.h"
#include "device/cpu/elementwise.h"
#include "device/cpu/every_target_for_test.h"
#include "device/cpu/tiles.h"

namespace protean::cpu {
namespace {

struct Config {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 8;
  int window = 0;
  int block_tokens = 16;
  KvElement element = KvElement::kBf16;
  MatmulIsa isa = MatmulIsa::kVector;
  float scale = 0;
  float score_cap = 0;

  bool in_pairs() const { return isa != MatmulIsa::kVector; }
};

// Returns a config for each way of storing and multiplying keys and values.
std::vector<Config> every_way(Config config) {
  std::vector<Config> ways;
  for (const KvElement element : {KvElement::kF32, KvElement::kBf16, KvElement::kInt8}) {
    config.element = element;
    ways.push_back(config);
  }
  config.element = KvElement::kBf16;
  for (const MatmulIsa isa : {MatmulIsa::kDot, MatmulIsa::kEmulatedAmx}) {
    config.isa = isa;
    ways.push_back(config);
  }
  config.element = KvElement::kInt8;
  ways.push_back(config);
  return ways;
}

// A paged store that is filled with 0xff, a NaN in floats and scales, so that reading before
// writing is detected.
struct Store {
  Store(const Config& config, int blocks)
      : memory(static_cast<std::size_t>(blocks * stride(config)), std::byte{0xff}) {
    layer = {.base = memory.data(),
             .block_stride_bytes = stride(config),
             .element = config.element,
             .kv_heads = config.kv_heads,
             .head_dim = config.head_dim,
             .block_tokens = config.block_tokens};
  }
  // Leaves some bytes between blocks, which belong to other layers.
  static std::int64_t stride(const Config& config) {
    const KvLayer like{.element = config.element,
                       .head_dim = config.head_dim,
                       .block_tokens = config.block_tokens};
    return config.kv_heads * like.slot_bytes() + 64;
  }
  std::vector<std::byte> memory;
  KvLayer layer;
};

// The inputs of one sequence: rows by position.
struct Sequence {
  int tokens = 0;
  std::vector<float> q, k, v;
  std::vector<BlockId> blocks;
};

// The tokens of a sequence that a call computes.
struct Piece {
  const Sequence* sequence = nullptr;
  int first = 0;
  int rows = 0;
};

class Attention : public EveryTarget {
 protected:
  Sequence random_sequence(const Config& config, int tokens) {
    return {tokens,
            random_floats(std::int64_t{tokens} * config.heads * config.head_dim),
            random_floats(std::int64_t{tokens} * config.kv_heads * config.head_dim),
            random_floats(std::int64_t{tokens} * config.kv_heads * config.head_dim),
            {}};
  }

  // Includes pairs on targets without instructions for them.
  static std::vector<Config> ways(const Config& shape) {
    std::vector<Config> ways = every_way(shape);
    const bool rounds = GetParam() != HWY_AVX3 || bf16_dot_pays() || amx_available();
    if (GetParam() == HWY_SCALAR || !rounds) {
      std::erase_if(ways, [](const Config& config) { return config.in_pairs(); });
    }
    return ways;
  }

  // Assigns blocks in random order.
  int place(const Config& config, std::vector<Sequence>& sequences) {
    int blocks = 3;
    for (const Sequence& sequence : sequences) {
      blocks += (sequence.tokens + config.block_tokens - 1) / config.block_tokens;
    }
    std::vector<BlockId> free(static_cast<std::size_t>(blocks));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random());
    for (Sequence& sequence : sequences) {
      sequence.blocks.clear();
      for (int t = 0; t < sequence.tokens; t += config.block_tokens) {
        sequence.blocks.push_back(free.back());
        free.pop_back();
      }
    }
    return blocks;
  }
};

// Stores all pieces in one call and attends in another. Returns the outputs of the pieces in order.
std::vector<float> compute(Team& team, const Config& config, const KvLayer& layer,
                           const std::vector<Piece>& pieces) {
  std::vector<AttentionSlice> slices;
  std::vector<float> q, k, v;
  int rows = 0;
  const auto append = [](std::vector<float>& to, const std::vector<float>& from, int first,
                         int count) {
    to.insert(to.end(), from.begin() + first, from.begin() + first + count);
  };
  for (const Piece& piece : pieces) {
    slices.push_back({rows, piece.rows, piece.first, piece.sequence->blocks});
    rows += piece.rows;
    const int width = config.heads * config.head_dim, kv_width = config.kv_heads * config.head_dim;
    append(q, piece.sequence->q, piece.first * width, piece.rows * width);
    append(k, piece.sequence->k, piece.first * kv_width, piece.rows * kv_width);
    append(v, piece.sequence->v, piece.first * kv_width, piece.rows * kv_width);
  }
  std::vector<float> out(q.size(), -1.0f);
  store_kv(team, layer, slices, k, v);
  attention(team, layer, slices,
            {.heads = config.heads,
             .window = config.window,
             .element = Element::kF32,
             .scale = config.scale,
             .score_cap = config.score_cap,
             .isa = config.isa},
            {q, out});
  return out;
}

// Returns the bf16 bits of the scale of a kInt8 row, rounded up.
std::uint16_t scale_bits(const float* row, int count) {
  float largest = 0;
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(row[i]));
  }
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(largest / 127.0f) + 0xffff) >>
                                    16);
}

int steps(const float* row, int i, std::uint16_t scale) {
  return static_cast<int>(std::nearbyint(row[i] * (1.0f / float_from(scale))));
}

// Returns a row of a head with the rounding of the store.
std::vector<double> stored(const Config& config, const float* row) {
  std::vector<double> values(row, row + config.head_dim);
  if (config.element == KvElement::kBf16) {
    std::transform(row, row + config.head_dim, values.begin(),
                   [](float value) { return float_from(bf16_from(value)); });
  } else if (config.element == KvElement::kInt8) {
    const std::uint16_t scale = scale_bits(row, config.head_dim);
    for (int i = 0; i < config.head_dim; ++i) {
      values[i] = double{float_from(scale)} * steps(row, i, scale);
    }
  }
  return values;
}

struct Expected {
  double value = 0;
  double error = 0;  // allowed for rounding
};

// Computes one head of one token in double precision without tiles.
std::vector<Expected> reference(const Config& config, const Sequence& sequence, int position,
                                int head) {
  const int d = config.head_dim;
  const int kv_head = head / (config.heads / config.kv_heads);
  const float* const row = sequence.q.data() + (position * config.heads + head) * d;
  std::vector<double> q(row, row + d);
  if (config.in_pairs() && config.element == KvElement::kBf16) {
    std::transform(row, row + d, q.begin(),
                   [](float value) { return float_from(bf16_from(value)); });
  }
  const int first = config.window > 0 ? std::max(0, position - config.window + 1) : 0;
  std::vector<double> scores;
  for (int t = first; t <= position; ++t) {
    const auto key = stored(config, sequence.k.data() + (t * config.kv_heads + kv_head) * d);
    const double dot = std::inner_product(key.begin(), key.end(), q.begin(), 0.0);
    const double score = config.scale > 0 ? double{config.scale} * dot : dot / std::sqrt(d);
    const double cap = config.score_cap;
    scores.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
  }
  const double high = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  // With pairs, each weight and so their sum has a relative error of up to 2^-9.
  const double rounding = config.in_pairs() ? std::ldexp(1.0, -8) : 0.0;
  std::vector<Expected> out(static_cast<std::size_t>(d));
  for (int t = first; t <= position; ++t) {
    const double weight = std::exp(scores[t - first] - high);
    total += weight;
    const auto value = stored(config, sequence.v.data() + (t * config.kv_heads + kv_head) * d);
    for (int i = 0; i < d; ++i) {
      out[i].value += weight * value[i];
      out[i].error += rounding * weight * std::abs(value[i]);
    }
  }
  for (Expected& expected : out) {
    expected.value /= total;
    expected.error = expected.error / total + 4e-6;
  }
  return out;
}

const Config kConfigs[] = {
    {.heads = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 1},
    {.heads = 4, .kv_heads = 2, .head_dim = 24, .window = 1, .block_tokens = 8},
    {.heads = 7, .kv_heads = 1, .head_dim = 40, .window = 5, .block_tokens = 32},
    {.heads = 8, .kv_heads = 8, .head_dim = 64, .window = 70, .block_tokens = 16},
    {.heads = 6, .kv_heads = 2, .head_dim = 80, .window = 64, .block_tokens = 5},
    {.heads = 37, .kv_heads = 1, .head_dim = 96, .block_tokens = 16},
    {.heads = 10, .kv_heads = 2, .head_dim = 128, .block_tokens = 32},
    {.heads = 4, .kv_heads = 4, .head_dim = 256, .window = 100, .block_tokens = 3},
    {.heads = 2, .kv_heads = 1, .head_dim = 512, .block_tokens = 64},
    {.heads = 2, .kv_heads = 1, .head_dim = 56, .block_tokens = 100},
    {.heads = 4, .kv_heads = 2, .head_dim = 64, .window = 90, .scale = 0.7F, .score_cap = 1.5F},
    {.heads = 2, .kv_heads = 1, .head_dim = 32, .score_cap = 0.3F},
};

TEST_P(Attention, AgreesWithDoublePrecision) {
  Team team(2);
  for (const Config& shape : kConfigs) {
    for (const Config& config : ways(shape)) {
      std::vector<Sequence> sequences;
      for (const int tokens : {1, 63, 300, 17}) {
        sequences.push_back(random_sequence(config, tokens));
      }
      const Store store(config, place(config, sequences));
      std::vector<Piece> pieces;
      pieces.reserve(sequences.size());
      for (const Sequence& sequence : sequences) {
        pieces.push_back({&sequence, 0, sequence.tokens});
      }
      const std::vector<float> out = compute(team, config, store.layer, pieces);
      std::size_t at = 0;
      for (const Sequence& sequence : sequences) {
        for (int position = 0; position < sequence.tokens; ++position) {
          for (int head = 0; head < config.heads; ++head, at += config.head_dim) {
            if ((position * 31 + head) % (instrumented() ? 53 : 11) != 0) {
              continue;  // checks a sample only
            }
            const std::vector<Expected> expected = reference(config, sequence, position, head);
            for (int i = 0; i < config.head_dim; ++i) {
              ASSERT_NEAR(out[at + i], expected[i].value, expected[i].error)
                  << "head_dim " << config.head_dim << " position " << position << " head " << head;
            }
          }
        }
      }
    }
  }
}

TEST_P(Attention, SurvivesLargeScores) {
  Team team(1);
  const Config config{.head_dim = 64, .element = KvElement::kF32};
  std::vector<Sequence> sequences = {random_sequence(config, 200)};
  for (float& value : sequences[0].q) {
    value *= 300.0f;
  }
  const Store store(config, place(config, sequences));
  const std::vector<float> out = compute(team, config, store.layer, {{&sequences[0], 0, 200}});
  for (int position = 0; position < 200; ++position) {
    const std::vector<Expected> expected = reference(config, sequences[0], position, 0);
    for (int i = 0; i < config.head_dim; ++i) {
      ASSERT_NEAR(out[static_cast<std::size_t>(position * 64 + i)], expected[i].value, 3e-3);
    }
  }
}

constexpr int kLong = 290;  // positions in two segments, the first of 256

// Returns how many rows a call computes from a position on: `chunk` at the beginning and around the
// end of the first segment, and as many as possible elsewhere.
int rows_from(int first, int chunk) {
  const int cut = repetitions(20);
  const int before_end = 255 - cut / 2;
  if (first < cut || (first >= before_end && first < before_end + cut)) {
    return std::min(chunk, kLong - first);
  }
  return first < before_end ? before_end - first : kLong - first;
}

// Compares a sequence computed at once with the same sequence token by token, in chunks, together
// with other sequences, with more threads, and with other block sizes. Emulated tiles are slow, so
// each shape is tried with them for one kind of keys and values. Each config is computed token by
// token and with every second of the other cuts. Which these are alternates with pairs of shapes,
// so that each cut is tried with each isa and kind, tiles included.
TEST_P(Attention, GivesARowTheSameBitsInAnyBatch) {
  KvElement tiled = KvElement::kBf16;
  int shapes = 0;
  for (const Config& shape : kConfigs) {
    const int pair = shapes++ / 2;
    tiled = tiled == KvElement::kBf16 ? KvElement::kInt8 : KvElement::kBf16;
    int way = 0;
    for (const Config& config : ways(shape)) {
      ++way;
      if (config.isa == MatmulIsa::kEmulatedAmx && config.element != tiled) {
        continue;
      }
      std::vector<Sequence> sequences;
      for (const int tokens : {5, kLong, 2}) {
        sequences.push_back(random_sequence(config, tokens));
      }
      const Sequence& sequence = sequences[1];
      const std::size_t width = sequence.q.size() / static_cast<std::size_t>(sequence.tokens);
      Team one(1);
      std::vector<float> whole;
      {
        const Store store(config, place(config, sequences));
        whole = compute(one, config, store.layer, {{&sequence, 0, sequence.tokens}});
      }
      Config blocks = config;
      int cut = 0;
      for (const auto& [chunk, threads] :
           {std::pair{1, 1}, {7, 2}, {16, 1}, {64, 3}, {kLong - 1, 3}, {kLong, 2}}) {
        if (chunk > 1 && (pair + way + ++cut) % 2 == 0) {
          continue;
        }
        Team team(threads);
        blocks.block_tokens = chunk == 7 ? 1 : chunk == 16 ? 8 : config.block_tokens;
        const Store store(blocks, place(blocks, sequences));
        for (int first = 0, rows = 0; first < kLong; first += rows) {
          rows = rows_from(first, chunk);
          std::vector<Piece> pieces;
          std::size_t before = 0;
          if (threads > 1) {
            pieces.push_back({&sequences[0], 0, 5});
            before = 5 * width;
          }
          pieces.push_back({&sequence, first, rows});
          if (threads > 1) {
            pieces.push_back({&sequences[2], 0, 2});
          }
          const std::vector<float> out = compute(team, blocks, store.layer, pieces);
          ASSERT_EQ(std::memcmp(out.data() + before, whole.data() + first * width,
                                static_cast<std::size_t>(rows) * width * sizeof(float)),
                    0)
              << "head_dim " << config.head_dim << " chunk " << chunk << " threads " << threads
              << " first " << first;
        }
      }
    }
  }
}

TEST_P(Attention, RoundsItsOutput) {
  Team team(1);
  const Config config{.heads = 2, .head_dim = 24};
  std::vector<Sequence> sequences = {random_sequence(config, 20)};
  const Store store(config, place(config, sequences));
  std::vector<float> expected = compute(team, config, store.layer, {{&sequences[0], 0, 20}});
  round_to(Element::kBf16, expected);
  std::vector<float> out(expected.size());
  const AttentionSlice slice{0, 20, 0, sequences[0].blocks};
  attention(team, store.layer, std::span(&slice, 1),
            {.heads = 2, .element = Element::kBf16, .isa = MatmulIsa::kVector},
            {sequences[0].q, out});
  EXPECT_EQ(out, expected);
}

// Writes the expected contents of a row of a slot.
void expect_row(const Config& config, const float* row, std::byte* slot, int index) {
  const int d = config.head_dim;
  if (config.element == KvElement::kF32) {
    std::memcpy(slot + index * d * 4, row, static_cast<std::size_t>(d) * 4);
    return;
  }
  const std::uint16_t scale = scale_bits(row, d);
  for (int i = 0; i < d; ++i) {
    if (config.element == KvElement::kBf16) {
      const std::uint16_t half = bf16_from(row[i]);
      std::memcpy(slot + (index * d + i) * 2, &half, 2);
    } else {
      slot[index * d + i] = static_cast<std::byte>(steps(row, i, scale));
    }
  }
  if (config.element == KvElement::kInt8) {
    std::memcpy(slot + 2 * config.block_tokens * d + index * 2, &scale, 2);
  }
}

TEST_P(Attention, StoresEachHeadInItsSlot) {
  Team team(2);
  for (const Config& shape : kConfigs) {
    for (const Config& config : ways(shape)) {
      std::vector<Sequence> sequences = {random_sequence(config, 45)};
      const Sequence& sequence = sequences[0];
      const Store store(config, place(config, sequences));
      compute(team, config, store.layer, {{&sequence, 0, 45}});
      std::vector<std::byte> expected(store.memory.size(), std::byte{0xff});
      const int d = config.head_dim;
      for (int t = 0; t < 45; ++t) {
        for (int head = 0; head < config.kv_heads; ++head) {
          std::byte* const block =
              expected.data() + sequence.blocks[t / config.block_tokens] * Store::stride(config);
          const int in_block = t % config.block_tokens;
          for (int which = 0; which < 2; ++which) {
            const float* row =
                (which == 0 ? sequence.k : sequence.v).data() + (t * config.kv_heads + head) * d;
            expect_row(config, row, block + head * store.layer.slot_bytes(),
                       which * config.block_tokens + in_block);
          }
        }
      }
      EXPECT_TRUE(store.memory == expected) << "head_dim " << d;
    }
  }
}

// Blocks before the window may belong to other sequences, and their ids may be invalid.
TEST_P(Attention, DoesNotReadBehindTheWindow) {
  Team team(1);
  const Config config{.head_dim = 16, .window = 20, .block_tokens = 8};
  std::vector<Sequence> sequences = {random_sequence(config, 150)};
  Sequence& sequence = sequences[0];
  const Store store(config, place(config, sequences));
  const std::vector<float> whole = compute(team, config, store.layer, {{&sequence, 0, 150}});
  for (int block = 0; block < (149 - 19) / 8; ++block) {
    sequence.blocks[static_cast<std::size_t>(block)] = -1;
  }
  const std::vector<float> last = compute(team, config, store.layer, {{&sequence, 149, 1}});
  EXPECT_TRUE(std::equal(last.begin(), last.end(), whole.end() - 16));
}

// A key or value that is not finite must not affect rows that do not see it, even if it is
// multiplied together with a visible one.
TEST_P(Attention, UnseenPositionsHaveNoEffect) {
  constexpr int kTokens = 90, kWindow = 6;
  constexpr std::int64_t kRow = 80;  // floats
  for (const Config& config : ways({.heads = 2, .head_dim = 40, .window = kWindow})) {
    Team team(1);
    std::vector<Sequence> sequences = {random_sequence(config, kTokens)};
    const Store store(config, place(config, sequences));
    const std::vector<float> finite = compute(team, config, store.layer, {{&sequences[0], 0, 90}});
    for (const int infinite : {37, 38, 0, 63, 64, 89}) {
      Sequence sequence = sequences[0];
      for (std::vector<float>* const rows : {&sequence.k, &sequence.v}) {
        (*rows)[static_cast<std::size_t>(infinite * 40 + 3)] =
            std::numeric_limits<float>::infinity();
      }
      for (const int rows : {kTokens, 3}) {
        for (int first = 0; first < kTokens; first += rows) {
          const std::vector<float> out =
              compute(team, config, store.layer, {{&sequence, first, rows}});
          for (int position = first; position < first + rows; ++position) {
            const float* const row = out.data() + (position - first) * kRow;
            if (position >= infinite && position < infinite + kWindow) {
              EXPECT_FALSE(std::isfinite(row[3])) << "position " << position << " of rows " << rows;
            } else {
              EXPECT_EQ(std::memcmp(row, finite.data() + position * kRow, kRow * sizeof(float)), 0)
                  << "position " << position << " of rows " << rows << ", infinite " << infinite;
            }
          }
        }
      }
    }
  }
}

// Tiles flush tiny sums to zeros with a sign.
TEST_P(Attention, TinySumsHaveTheSameBitsInAnyBatch) {
  constexpr int kTokens = 70;
  constexpr float kLeast = std::numeric_limits<float>::min();
  for (const Config& config : ways({.head_dim = 8})) {
    Team team(1);
    Sequence sequence = random_sequence(config, kTokens);
    std::fill(sequence.q.begin(), sequence.q.end(), 0.0f);
    std::fill(sequence.v.begin(), sequence.v.end(), 0.0f);
    std::fill_n(sequence.v.begin(), 8, -1.5f * kLeast);
    std::fill_n(sequence.v.begin() + std::ptrdiff_t{32} * 8, 8, 1.25f * kLeast);
    std::vector<Sequence> sequences = {sequence};
    const Store store(config, place(config, sequences));
    compute(team, config, store.layer, {{&sequences[0], 0, kTokens}});
    const std::vector<float> together =
        compute(team, config, store.layer, {{&sequences[0], 60, 10}});
    const std::vector<float> alone = compute(team, config, store.layer, {{&sequences[0], 60, 1}});
    EXPECT_EQ(std::memcmp(alone.data(), together.data(), 8 * sizeof(float)), 0);
  }
}

// Stack memory is not cleared: data of earlier calls and unused depth must have no effect.
TEST_P(Attention, DoesNotReadDataOfEarlierCalls) {
  Team team(1);
  std::vector<Config> wide = ways({.head_dim = 512});
  std::vector<Config> narrow = ways({.head_dim = 40});
  for (std::size_t i = 0; i < wide.size(); ++i) {
    std::vector<Sequence> sequences = {random_sequence(wide[i], 300)};
    std::fill(sequences[0].k.begin(), sequences[0].k.end(),
              std::numeric_limits<float>::quiet_NaN());
    const Store store(wide[i], place(wide[i], sequences));
    compute(team, wide[i], store.layer, {{&sequences[0], 0, 300}});
    std::vector<Sequence> numbers = {random_sequence(narrow[i], 300)};
    const Store other(narrow[i], place(narrow[i], numbers));
    for (const float value : compute(team, narrow[i], other.layer, {{&numbers[0], 0, 300}})) {
      ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST_P(Attention, AmxAgreesWithItsEmulation) {
  if (!amx_promised()) {
    GTEST_SKIP() << "this processor has no AMX";
  }
  // The change if one weight is rounded to bf16 in the other direction.
  constexpr float kTolerance = 0x1p-7f;
  Team team(2);
  for (Config config : kConfigs) {
    std::vector<Sequence> sequences = {random_sequence(config, kLong)};
    const Store store(config, place(config, sequences));
    for (const int rows : {kLong, 1}) {
      const Piece piece{&sequences[0], kLong - rows, rows};
      config.isa = MatmulIsa::kAmx;
      const std::vector<float> out = compute(team, config, store.layer, {piece});
      config.isa = MatmulIsa::kEmulatedAmx;
      const std::vector<float> emulated = compute(team, config, store.layer, {piece});
      ASSERT_EQ(out.size(), emulated.size());
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], emulated[i], kTolerance) << "head_dim " << config.head_dim;
      }
    }
  }
}

// A key or value that is not finite must give NaNs, not numbers.
TEST_P(Attention, AnInfinityInAnInt8RowGivesNans) {
  Team team(1);
  const Config config{.head_dim = 24, .element = KvElement::kInt8};
  std::vector<Sequence> sequences = {random_sequence(config, 3)};
  sequences[0].v[24 + 5] = std::numeric_limits<float>::infinity();
  const Store store(config, place(config, sequences));
  const std::vector<float> out = compute(team, config, store.layer, {{&sequences[0], 0, 3}});
  for (int i = 0; i < 24; ++i) {
    EXPECT_TRUE(std::isfinite(out[static_cast<std::size_t>(i)]));
    EXPECT_TRUE(std::isnan(out[static_cast<std::size_t>(24 + i)]));
  }
}

TEST_P(Attention, ANanInAKeyGivesNans) {
  Team team(1);
  for (const Config& config : ways({.head_dim = 24})) {
    for (const int rows : {70, 2}) {
      std::vector<Sequence> sequences = {random_sequence(config, 70)};
      sequences[0].k[24 * 68 + 5] = std::numeric_limits<float>::quiet_NaN();
      const Store store(config, place(config, sequences));
      compute(team, config, store.layer, {{&sequences[0], 0, 70}});
      const std::vector<float> out =
          compute(team, config, store.layer, {{&sequences[0], 70 - rows, rows}});
      for (int row = 0; row < rows; ++row) {
        EXPECT_EQ(std::isnan(out[static_cast<std::size_t>(24 * row)]), row >= rows - 2);
      }
    }
  }
}

// Tiny rows have no scale with a finite inverse.
TEST_P(Attention, TinyInt8RowsAreZeros) {
  Team team(1);
  const Config config{.head_dim = 8, .element = KvElement::kInt8};
  std::vector<Sequence> sequences = {random_sequence(config, 2)};
  std::fill(sequences[0].v.begin(), sequences[0].v.end(), 1e-39f);
  std::fill(sequences[0].k.begin(), sequences[0].k.end(), 0.0f);
  const Store store(config, place(config, sequences));
  EXPECT_EQ(compute(team, config, store.layer, {{&sequences[0], 0, 2}}),
            std::vector<float>(16, 0.0f));
}

TEST_P(Attention, AcceptsNoSlices) {
  Team team(2);
  const Config config;
  const Store store(config, 1);
  compute(team, config, store.layer, {});
}

PROTEAN_ON_EVERY_TARGET(Attention);

}  // namespace
}  // namespace protean::cpu

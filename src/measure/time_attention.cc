#include "measure/time_attention.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "base/units.h"
#include "device/cpu/attention.h"

namespace protean {
namespace {

constexpr int kTokensPerBlock = 16;

std::vector<float> noise(std::int64_t count) {
  std::minstd_rand random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return uniform(random); });
  return values;
}

// Layers have arrays of their own, as in a worker (worker/kv_store.h).
class PagedKv {
 public:
  PagedKv(const AttentionCase& asked, std::span<std::byte> memory)
      : asked_(asked), blocks_(ceil_div(asked.context, kTokensPerBlock)) {
    layer_ = {.base = memory.data(),
              .element = asked.kv,
              .kv_heads = asked.heads.kv_heads,
              .head_dim = asked.heads.head_dim,
              .block_tokens = kTokensPerBlock};
    slot_bytes_ = layer_.kv_heads * layer_.slot_bytes();
    layers_ = static_cast<int>(std::ssize(memory) / bytes_of_layer());
    layer_.block_stride_bytes = slot_bytes_;
    ids_.resize(static_cast<std::size_t>(blocks_) * static_cast<std::size_t>(asked.sequences));
    std::iota(ids_.begin(), ids_.end(), 0);
    std::shuffle(ids_.begin(), ids_.end(), std::minstd_rand(5));
  }

  int layers() const { return layers_; }
  std::int64_t bytes_of_layer() const { return slot_bytes_ * blocks_ * asked_.sequences; }

  cpu::KvLayer layer(int i) const {
    cpu::KvLayer layer = layer_;
    layer.base += i * bytes_of_layer();
    return layer;
  }

  // Returns the last `rows` positions of every sequence.
  std::vector<cpu::AttentionSlice> slices(int rows) const {
    std::vector<cpu::AttentionSlice> slices;
    for (int i = 0; i < asked_.sequences; ++i) {
      const auto blocks = static_cast<std::size_t>(blocks_);
      slices.push_back({i * rows, rows, asked_.context - rows,
                        std::span(ids_).subspan(static_cast<std::size_t>(i) * blocks, blocks)});
    }
    return slices;
  }

  void fill(cpu::Team& team) const {
    const std::vector<float> kv =
        noise(std::int64_t{asked_.context} * layer_.kv_heads * layer_.head_dim);
    for (int i = 0; i < layers_; ++i) {
      for (cpu::AttentionSlice slice : slices(asked_.context)) {
        slice.first_row = 0;
        store_kv(team, layer(i), std::span(&slice, 1), kv, kv);
      }
    }
  }

 private:
  AttentionCase asked_;
  int blocks_;  // blocks of a sequence
  int layers_ = 0;
  std::int64_t slot_bytes_ = 0;  // bytes of a block in one layer
  cpu::KvLayer layer_;
  std::vector<BlockId> ids_;
};

// Returns the pairs of query and key: each row attends to its own position and all before.
double pairs_of(const AttentionCase& asked) {
  const double first = asked.context - asked.rows + 1;
  return asked.sequences * asked.rows * (first + asked.context) / 2;
}

}  // namespace

Result<KernelTime> time_attention(const AttentionCase& asked, cpu::Team& team,
                                  std::span<std::byte> memory, const MedianOf& median_s) {
  const PagedKv kv(asked, memory);
  if (kv.layers() < 2) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--memory {}: two layers of KV of {} must fit, or it stays in cache",
                      std::ssize(memory) / kMiB, format_bytes(kv.bytes_of_layer()));
  }
  kv.fill(team);
  const std::vector<cpu::AttentionSlice> slices = kv.slices(asked.rows);
  const std::vector<float> q =
      noise(std::int64_t{asked.sequences} * asked.rows * asked.heads.heads * asked.heads.head_dim);
  std::vector<float> out(q.size());
  // Short runs are timed over several layers: one takes too little for the clock.
  const int layers = asked.rows == 1 ? kv.layers() : 2;
  const double seconds = median_s([&] {
    for (int i = 0; i < layers; ++i) {
      attention(team, kv.layer(i), slices, {.heads = asked.heads.heads}, {q, out});
    }
  });
  return KernelTime{.us = 1e6 * seconds / layers,
                    .bytes = static_cast<double>(kv.bytes_of_layer()),
                    .operations = pairs_of(asked) * asked.heads.heads * asked.heads.head_dim * 4};
}

}  // namespace protean

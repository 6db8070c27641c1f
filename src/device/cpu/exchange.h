#pragma once

#include <cstdint>
#include <span>

namespace protean::cpu {

// Rows that the devices of a group show each other, because each has shards of the weights that
// make them: gathered embeddings, sums of squares over heads, partial sums of a half of a layer,
// columns of logits.
enum class SharedRows : std::uint8_t { kEmbedding, kHeadSquares, kAttention, kMlp, kLogits };

// What one device shows: its rows for the shards [first_shard, first_shard + shards).
struct ShownRows {
  int first_shard = 0;
  int shards = 1;
  std::span<const float> rows;
};

// One device's side of the exchange with the other devices of its group. All of them make the same
// calls for a step, in the same order, and steps in the same order. A device waits only for what
// others do before it in that order, so waiting cannot end in a circle. `turn` is the layer, or the
// number of a tile of logits within its step.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Waits until no device reads the rows that this one showed last as `which`.
  virtual void reuse(SharedRows which) = 0;
  // Lets the others read rows, which stay as they are until reuse().
  virtual void show(SharedRows which, int turn, std::span<const float> mine) = 0;
  // Waits for all devices and returns their rows, its own included, in order of shards.
  virtual std::span<const ShownRows> collect(SharedRows which, int turn) = 0;
  // Ends the reading of what was collected last.
  virtual void release(SharedRows which, int turn) = 0;
};

}  // namespace protean::cpu

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contract/step.h"
#include "device/cpu/kv_layer.h"
#include "model/forward.h"
#include "worker/kv_places.h"

namespace protean {

// The rows of a step as Forward reads them: those of each home's plan behind those of the home
// before it. Kept from step to step, so that memory is reused.
class StepRows {
 public:
  // What plans must stay within.
  struct Limits {
    int rows = 0;
    int positions = 0;
    int vocab = 0;
    int block_tokens = 0;
  };
  explicit StepRows(const Limits& limits) : limits_(limits) {}

  // Reads a plan for each home, for a KV cache of so many blocks of each. The plans must outlive
  // the use of batches. Stops the program if a plan is malformed, all are without tokens, or they
  // are beyond the limits.
  void read(std::span<const StepPlan> plans, std::int64_t blocks);

  // The first row of a home's plan in the step, and the number of its rows.
  int first_row(int home) const { return homes_[static_cast<std::size_t>(home)].first_row; }
  int rows(int home) const { return homes_[static_cast<std::size_t>(home)].rows; }

  // Returns the rows of consecutive homes, whose blocks are at these places of a layer's array;
  // null: each at the place of its number. Valid until the next read().
  ForwardBatch batch(int first_home, int homes, const KvPlaces* places = nullptr);

  // The rows of the step from which a home's plan draws, by sample.
  std::span<const int> sampled_rows(int home) const {
    return homes_[static_cast<std::size_t>(home)].sampled_rows;
  }

 private:
  struct Home {
    const StepPlan* plan = nullptr;
    int first_row = 0;
    int rows = 0;
    std::vector<int> sampled_rows;
  };
  // The slices of consecutive homes with their blocks' places.
  struct View {
    int first_home = 0;
    int homes = 0;
    const KvPlaces* places = nullptr;
    std::vector<BlockId> blocks;
    std::vector<cpu::AttentionSlice> slices;
  };

  static std::span<const BlockId> blocks_of(const StepPlan& plan, const SequenceSlice& slice);
  void check_slice(const StepPlan& plan, const SequenceSlice& slice, int next_token) const;
  void read(const StepPlan& plan, std::int64_t blocks, Home& home);
  const View& view(int first_home, int homes, const KvPlaces* places);
  void fill(View& view) const;

  const Limits limits_;
  std::vector<Home> homes_;
  std::vector<TokenId> tokens_;
  std::vector<int> positions_;
  std::vector<View> views_;
  std::size_t views_made_ = 0;  // of this step; the others keep their memory
};

}  // namespace protean

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contract/step.h"
#include "device/cpu/kv_layer.h"
#include "model/forward.h"

namespace protean {

// The rows of a step as Forward reads them. Kept from step to step, so that memory is reused.
class StepRows {
 public:
  // What plans must stay within.
  struct Limits {
    int rows = 0;
    int positions = 0;
    int vocab = 0;
    int block_tokens = 0;
  };
  explicit StepRows(const Limits& limits);

  // Reads a plan, which must outlive the use of batch(), for a KV cache of so many blocks. Stops
  // the program if the plan is malformed or beyond the limits.
  void read(const StepPlan& plan, std::int64_t blocks);

  ForwardBatch batch() const { return {tokens_, positions_, slices_}; }
  std::span<const int> sampled_rows() const { return sampled_rows_; }  // by sample

 private:
  void check_slice(const StepPlan& plan, const SequenceSlice& slice) const;

  const Limits limits_;
  std::span<const TokenId> tokens_;
  std::vector<int> positions_;
  std::vector<cpu::AttentionSlice> slices_;
  std::vector<int> sampled_rows_;
};

}  // namespace protean

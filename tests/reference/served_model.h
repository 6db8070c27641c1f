#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "contract/step.h"
#include "model/checkpoint.h"
#include "worker/rank.h"

namespace protean {

// A sequence as a test drives it: where its blocks are is the test's choice.
struct TestSequence {
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  int computed = 0;
  std::map<int, std::vector<float>> logits;  // by position of the token they follow
  std::vector<TokenId> drawn;                // greedy, one per chunk
};

// The served model, step by step, with the logits of each chunk's last token.
class ServedModel {
 public:
  struct Options {
    Precision precision = Precision::kF32;
    int threads = 1;
    int block_tokens = 16;
    int blocks = 64;
  };
  ServedModel(const Checkpoint& checkpoint, const Options& options);

  // One step over the next `count` tokens of each sequence.
  void step(const std::vector<std::pair<TestSequence*, int>>& chunks);

  // All that is left of one sequence, in chunks of these sizes, the last one repeated.
  void run(TestSequence& sequence, const std::vector<int>& chunk_sizes);

 private:
  Options options_;
  int vocab_;
  std::unique_ptr<Rank> rank_;
  std::uint64_t last_step_ = 0;
};

}  // namespace protean

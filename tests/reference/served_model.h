#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "contract/step.h"
#include "model/checkpoint.h"
#include "worker/rank.h"

namespace protean {

// A sequence that a test drives. The test chooses its blocks.
struct TestSequence {
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  int computed = 0;
  std::map<int, std::vector<float>> logits;  // by position of the token they follow
  std::vector<TokenId> drawn;                // greedy, one per chunk
};

// The likelihood of each prompt token but the first, and the embeddings of the prompt.
struct ReadPrompt {
  std::vector<TokenLogprobs> scored;
  std::vector<double> row_sum;
  std::vector<double> last_row;
};

// Serves a model step by step and keeps the logits of each chunk's last token.
class ServedModel {
 public:
  struct Options {
    Precision precision = Precision::kF32;
    std::vector<LayerPrecision> layers = {};  // by layer; empty: all at `precision`
    int threads = 1;
    int block_tokens = 16;
    int blocks = 64;
    int shards = 1;  // of each layer: the form's largest TP degree
  };
  ServedModel(const Checkpoint& checkpoint, const Options& options);

  // Runs one step over the next `count` tokens of each sequence.
  void step(const std::vector<std::pair<TestSequence*, int>>& chunks);

  // Runs the rest of one sequence in chunks of these sizes, repeating the last size.
  void run(TestSequence& sequence, const std::vector<int>& chunk_sizes);

  // Scores and pools a prompt in chunks of these sizes, repeating the last size.
  ReadPrompt read(const std::vector<TokenId>& prompt, const std::vector<int>& chunk_sizes);

 private:
  void read_chunk(const std::vector<TokenId>& prompt, int first, int count, ReadPrompt& so_far);

  Options options_;
  int vocab_;
  std::unique_ptr<Rank> rank_;
  std::uint64_t last_step_ = 0;
};

}  // namespace protean

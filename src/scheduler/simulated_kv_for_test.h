#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/scheduler.h"

// The property test's view of requests, as their clients know them, and a KV cache that records
// what each cell was computed from.

namespace protean {

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xBF58476D1CE4E5B9ULL;
  return hash ^ (hash >> 31);
}

inline std::uint64_t chain_start(const std::string& salt) {
  return mix(7, std::hash<std::string>{}(salt));
}

inline std::uint64_t chain_next(std::uint64_t chain, TokenId token) {
  return mix(chain, static_cast<std::uint64_t>(token) + 1);
}

// A request as its client knows it. It is kept after its end, since steps in flight still name it.
struct Client {
  std::vector<TokenId> tokens;  // prompt, then output
  std::string salt;
  std::uint64_t taste = 0;  // decides what is drawn; few values, so that outputs repeat
  int left = 0;             // tokens still to draw
  int next = -1;  // first position of its next slice if it keeps its KV; -1 before it first runs
  std::pair<int, TimeNs> place;  // priority and due time; the id breaks ties
  int prompt = 0;
  bool draws = true;
  bool failed = false;  // chunks of its prompt after the one that failed mean nothing
  bool wants_scores = false;
  Pooling pooling = Pooling::kNone;
  RequestId call;
  int scored = 1;     // prompt tokens scored by executed steps, counting the first token
  int delivered = 1;  // prompt tokens scored by completed steps, counting the first token
  int pooled = 0;     // leading rows of the sum so far

  bool reuses() const { return !wants_scores && pooling != Pooling::kMean; }
};

using Clients = std::map<RequestId, Client>;

// A change of KV between two steps.
struct Resize {
  std::int64_t blocks = 0;
};
using KvEdit = std::variant<Resize, std::vector<BlockMove>>;

struct Step {
  StepPlan plan;
  unsigned tag = 0;            // precision tag when it was planned
  std::set<RequestId> placed;  // admitted by this plan, for the first time or again
  bool executed = false;
  bool failed = false;
  std::vector<TokenId> sampled;
  std::vector<TokenLogprobs> scored;
  std::vector<KvEdit> edits;  // made after the step
};

// KV whose cells hold a hash of what they depend on, the salt and all tokens up to their own, and
// the precision tags of all steps that computed them. A write continues the hash of the previous
// cell, so that a wrong prefix makes all later cells wrong.
class SimulatedKv {
 public:
  explicit SimulatedKv(const SchedulerConfig& config) : block_tokens_(config.block_tokens) {
    resize(config.kv_blocks);
  }

  // Removed blocks lose their content.
  void resize(std::int64_t blocks) {
    cells_.resize(static_cast<std::size_t>(blocks * block_tokens_));
  }

  void move(const BlockMove& move) {
    for (int i = 0; i < block_tokens_; ++i) {
      at(move.to, i) = std::exchange(at(move.from, i), {});
    }
  }

  void execute(const Step& step, const SequenceSlice& slice, const Client& client) {
    const int end = slice.first_position + slice.token_count;
    ASSERT_LE(end, slice.block_count * block_tokens_) << "the block table is too short";
    ASSERT_LE(end, std::ssize(client.tokens));
    if (step.placed.contains(slice.request)) {
      expect_reused_at(step, slice);
    }
    for (int position = slice.first_position; position < end; ++position) {
      const TokenId token = step.plan.tokens[static_cast<std::size_t>(slice.token_begin + position -
                                                                      slice.first_position)];
      const Cell before =
          position == 0 ? Cell{chain_start(client.salt), 0} : cell(step.plan, slice, position - 1);
      cell(step.plan, slice, position) = {chain_next(before.chain, token),
                                          before.tags | (1U << step.tag)};
    }
    expect_content(step.plan, slice, client);
  }

 private:
  struct Cell {
    std::uint64_t chain = 0;
    unsigned tags = 0;  // a bit for each precision tag
  };

  Cell& cell(const StepPlan& plan, const SequenceSlice& slice, int position) {
    const BlockId block =
        plan.blocks[static_cast<std::size_t>(slice.block_begin + position / block_tokens_)];
    return at(block, position % block_tokens_);
  }

  Cell& at(BlockId block, int index) {
    return cells_.at(static_cast<std::size_t>(block) * static_cast<std::size_t>(block_tokens_) +
                     static_cast<std::size_t>(index));
  }

  // Checks that reused KV was computed at the step's precisions alone.
  void expect_reused_at(const Step& step, const SequenceSlice& slice) {
    for (int position = 0; position < slice.first_position; ++position) {
      ASSERT_EQ(cell(step.plan, slice, position).tags, 1U << step.tag)
          << "request " << slice.request.value << " reuses KV of another precision at " << position;
    }
  }

  void expect_content(const StepPlan& plan, const SequenceSlice& slice, const Client& client) {
    std::uint64_t chain = chain_start(client.salt);
    for (int position = 0; position < slice.first_position + slice.token_count; ++position) {
      chain = chain_next(chain, client.tokens[static_cast<std::size_t>(position)]);
      ASSERT_EQ(cell(plan, slice, position).chain, chain)
          << "request " << slice.request.value << " reads foreign KV at " << position << " in step "
          << plan.id.value;
    }
  }

  const int block_tokens_;
  std::vector<Cell> cells_;
};

}  // namespace protean

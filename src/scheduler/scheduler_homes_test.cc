// Tests schedulers that merge and part with all their sequences and KV (AMOEBA section 3).

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "scheduler/scheduler.h"

namespace protean {
namespace {

constexpr int kTokensOfABlock = 4;

// The token that follows a sequence, for any prefix.
TokenId token_after(std::span<const TokenId> sequence) {
  std::uint64_t hash = 7;
  for (const TokenId token : sequence) {
    hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 31;
  }
  return static_cast<TokenId>(hash % 1000);
}

// Several homes, or one scheduler instead of them, over the same KV. Its cells hold the tokens that
// were computed, and what is drawn depends on all KV of the sequence: a block that is missing, too
// old or another one's changes the answer.
class HomesScene {
 public:
  HomesScene(int count, std::int64_t blocks, int sequences = 8)
      : HomesScene(HomeBlocks(count, blocks), sequences) {}
  explicit HomesScene(const HomeBlocks& blocks, int sequences = 8)
      : homes_{.blocks = blocks,
               .block_tokens = kTokensOfABlock,
               .max_num_seqs =
                   std::vector<int>(static_cast<std::size_t>(blocks.count()), sequences)},
        kv_(static_cast<std::size_t>(blocks.total() * kTokensOfABlock), -1) {
    for (int home = 0; home < count(); ++home) {
      schedulers_.push_back(std::make_unique<Scheduler>(config(blocks.of(home), sequences)));
    }
  }
  int count() const { return homes_.blocks.count(); }

  Status add(int home, int topic, int prompt, int output) {
    Request request;
    request.id = RequestId{++last_request_};
    request.max_tokens = output;
    request.call = RequestId{last_request_ % 3};
    request.cache_salt = topic == 1 ? "salt" : "";
    for (int i = 0; i < prompt; ++i) {
      request.prompt.push_back(topic * 100 + i);
    }
    const Request copy = request;
    const Status added = scheduler(home).add(std::move(request), 0, ++now_ns_);
    if (added.ok()) {
      clients_[copy.id] = {copy, copy.prompt};
    }
    return added;
  }

  // Runs a step of a home, or of the one scheduler. Returns false if it has nothing to do.
  bool step(int home) {
    Scheduler& runs = scheduler(home);
    const auto plan = runs.next_step(++now_ns_);
    if (!plan) {
      return false;
    }
    for (const Sampled& sampled : runs.complete(compute(*plan, home)).sampled) {
      Client& client = clients_.at(sampled.request);
      EXPECT_EQ(sampled.token, token_after(client.tokens)) << "request " << sampled.request.value;
      client.tokens.push_back(sampled.token);
      if (std::ssize(client.tokens) == std::ssize(client.asks.prompt) + client.asks.max_tokens) {
        end(sampled.request, home);
      }
    }
    return true;
  }

  void join() {
    std::vector<SchedulerState> states;
    for (const auto& home : schedulers_) {
      states.push_back(home->release_all());
    }
    one_ = std::make_unique<Scheduler>(
        config(homes_.blocks.total(), count() * homes_.max_num_seqs.front()));
    one_->absorb(join_homes(std::move(states), homes_.blocks));
  }

  std::optional<Error> split(bool preempts) {
    const std::int64_t before = one_->observe().running + one_->observe().waiting;
    SchedulerState state = one_->release_all();
    Result<HomeStates> split = split_homes(state, homes_, preempts);
    if (!split.ok()) {
      one_->absorb(std::move(state));
      EXPECT_EQ(one_->observe().running + one_->observe().waiting, before);
      return split.error();
    }
    for (const std::vector<BlockMove>& wave : split->moves) {
      std::set<BlockId> touched;
      for (const BlockMove& move : wave) {
        EXPECT_TRUE(touched.insert(move.to).second);
        std::copy_n(cell(move.from), kTokensOfABlock, cell(move.to));
      }
      for (const BlockMove& move : wave) {
        EXPECT_FALSE(touched.contains(move.from)) << "a wave may run in any order";
      }
      moves += std::ssize(wave);
    }
    preempted += split->preempted;
    one_.reset();
    for (std::size_t home = 0; home < schedulers_.size(); ++home) {
      schedulers_[home]->absorb(std::move(split->homes[home]));
    }
    return std::nullopt;
  }

  void cancel(RequestId request) {
    for (int home = 0; home < count(); ++home) {
      if (scheduler(home).remove(request)) {
        clients_.erase(request);
        return;
      }
    }
  }

  void finish_all() {
    for (bool more = true; more;) {
      more = false;
      for (int home = 0; home < (one_ ? 1 : count()); ++home) {
        more = step(home) || more;
      }
    }
    EXPECT_TRUE(clients_.empty());
    for (int home = 0; home < count(); ++home) {
      EXPECT_EQ(scheduler(home).observe().kv_blocks_used, 0);
      EXPECT_TRUE(scheduler(home).idle());
    }
  }

  bool joined() const { return one_ != nullptr; }
  Scheduler& scheduler(int home) {
    return one_ ? *one_ : *schedulers_[static_cast<std::size_t>(home)];
  }
  std::uint64_t last_request() const { return last_request_; }

  std::int64_t moves = 0;
  int preempted = 0;

 private:
  struct Client {
    Request asks;
    std::vector<TokenId> tokens;
  };

  static SchedulerConfig config(std::int64_t blocks, int sequences) {
    return {.kv_blocks = blocks,
            .block_tokens = kTokensOfABlock,
            .max_num_seqs = sequences,
            .max_num_batched_tokens = 40,
            .max_model_len = 1000};
  }

  std::vector<TokenId>::iterator cell(BlockId block) {
    return kv_.begin() + block * kTokensOfABlock;
  }

  StepResult compute(const StepPlan& plan, int home) {
    StepResult result{.id = plan.id, .sampled = std::vector<TokenId>(plan.samples.size())};
    for (const SequenceSlice& slice : plan.slices) {
      const auto at = [&](int position) -> TokenId& {
        const BlockId block =
            plan.blocks[static_cast<std::size_t>(slice.block_begin + position / kTokensOfABlock)];
        const BlockId id = one_ ? block : homes_.blocks.number(home, block);
        return *(cell(id) + position % kTokensOfABlock);
      };
      for (int i = 0; i < slice.token_count; ++i) {
        at(slice.first_position + i) = plan.tokens[static_cast<std::size_t>(slice.token_begin + i)];
      }
      std::vector<TokenId> read;
      for (int position = 0; position < slice.first_position + slice.token_count; ++position) {
        read.push_back(at(position));
      }
      if (slice.sample >= 0) {
        result.sampled[static_cast<std::size_t>(slice.sample)] = token_after(read);
      }
    }
    return result;
  }

  void end(RequestId request, int home) {
    EXPECT_TRUE(scheduler(home).remove(request).has_value());
    clients_.erase(request);
  }

  const Homes homes_;
  std::vector<TokenId> kv_;  // by block of the one scheduler
  std::vector<std::unique_ptr<Scheduler>> schedulers_;
  std::unique_ptr<Scheduler> one_;
  std::map<RequestId, Client> clients_;
  std::uint64_t last_request_ = 0;
  TimeNs now_ns_ = 0;
};

TEST(SchedulerHomes, AJoinedSchedulerGoesOnWithAllSequencesAndCounters) {
  HomesScene scene(2, 20);
  ASSERT_TRUE(scene.add(0, 2, 10, 8).ok());
  ASSERT_TRUE(scene.add(1, 3, 30, 8).ok());
  ASSERT_TRUE(scene.add(1, 4, 60, 8).ok());  // waits: the other's blocks are in use
  scene.step(0);
  scene.step(1);
  const Observation first = scene.scheduler(0).observe();
  scene.join();
  const Observation all = scene.scheduler(0).observe();
  EXPECT_EQ(all.kv_blocks, 40);
  EXPECT_EQ(all.running + all.waiting, 3);
  EXPECT_EQ(all.steps_total, first.steps_total);
  EXPECT_EQ(all.output_tokens_total, first.output_tokens_total);
  EXPECT_EQ(all.preemptions_total, 0);
  scene.finish_all();
}

TEST(SchedulerHomes, EqualContentOfTwoHomesIsKeptOnceAndServesLaterPrompts) {
  HomesScene scene(2, 20, 2);
  for (const int home : {0, 1}) {
    ASSERT_TRUE(scene.add(home, 2, 21, 9).ok());
    scene.step(home);
  }
  EXPECT_EQ(scene.scheduler(0).observe().kv_blocks_used, 6);
  scene.join();
  // Five full blocks of the prompt are shared, and each has a last one of its own.
  EXPECT_EQ(scene.scheduler(0).observe().kv_blocks_used, 7);
  ASSERT_TRUE(scene.add(0, 2, 21, 2).ok());
  scene.step(0);
  EXPECT_EQ(scene.scheduler(0).observe().prefix_hit_tokens_total, 20);
  // A home has places for two sequences: what it shares with the third is copied.
  EXPECT_FALSE(scene.split(false).has_value());
  EXPECT_GE(scene.moves, 5);
  scene.finish_all();
}

TEST(SchedulerHomes, CachedChainsWithinOneHomeStayCached) {
  HomesScene scene(2, 20);
  ASSERT_TRUE(scene.add(1, 2, 21, 1).ok());
  scene.step(1);
  scene.join();
  EXPECT_FALSE(scene.split(false).has_value());
  EXPECT_EQ(scene.moves, 0);
  ASSERT_TRUE(scene.add(1, 2, 21, 1).ok());
  scene.step(1);
  EXPECT_EQ(scene.scheduler(1).observe().prefix_hit_tokens_total, 20);
  scene.finish_all();
}

TEST(SchedulerHomes, ARequestThatOnlyAllHomesCanHoldKeepsThemTogether) {
  HomesScene scene(2, 20);
  scene.join();
  ASSERT_TRUE(scene.add(0, 2, 100, 9).ok());
  scene.step(0);
  const auto why = scene.split(true);
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->code, ErrorCode::kUnavailable);
  EXPECT_NE(why->message.find("needs 27 KV blocks, and the smallest replica has 20"),
            std::string::npos)
      << why->message;
  scene.finish_all();
  EXPECT_FALSE(scene.split(false).has_value());
}

TEST(SchedulerHomes, WhatFindsNoRoomIsPreemptedOnlyIfAsked) {
  HomesScene scene(2, 10);
  scene.join();
  for (const int topic : {2, 3, 4}) {
    ASSERT_TRUE(scene.add(0, topic, 22, 4).ok());  // 6 blocks each, and 10 in each home
    scene.step(0);
  }
  const auto why = scene.split(false);
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->code, ErrorCode::kExhausted);
  EXPECT_FALSE(scene.split(true).has_value());
  EXPECT_EQ(scene.preempted, 1);
  scene.finish_all();
}

TEST(SchedulerHomes, HomesOfUnequalSizeBecomeOneAndPart) {
  HomesScene scene(HomeBlocks(std::vector<std::int64_t>{8, 20}));
  ASSERT_TRUE(scene.add(0, 2, 20, 9).ok());
  ASSERT_TRUE(scene.add(1, 3, 50, 9).ok());  // beyond what the smaller home holds
  ASSERT_TRUE(scene.add(1, 4, 12, 9).ok());
  scene.step(0);
  scene.step(1);
  scene.join();
  EXPECT_EQ(scene.scheduler(0).observe().kv_blocks, 28);
  const auto why = scene.split(true);
  ASSERT_TRUE(why.has_value());
  EXPECT_NE(why->message.find("and the smallest replica has 8"), std::string::npos) << why->message;
  scene.cancel(RequestId{2});
  EXPECT_FALSE(scene.split(false).has_value());
  EXPECT_EQ(scene.scheduler(0).observe().kv_blocks, 8);
  EXPECT_EQ(scene.scheduler(1).observe().kv_blocks, 20);
  scene.finish_all();
}

// Random arrivals, steps, cancels, merges and splits: no token is lost, repeated or different, and
// no block or sequence is left.
TEST(SchedulerHomes, MergesAndSplitsAtRandomMomentsChangeNoToken) {
  std::int64_t moves = 0;
  int joins = 0;
  int refused = 0;
  int preempted = 0;
  std::int64_t hits = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    const int count = seed % 2 == 0 ? 2 : 4;
    std::vector<std::int64_t> blocks(static_cast<std::size_t>(count), 16 + below(20));
    blocks.back() += seed % 3 == 0 ? 0 : below(20);
    HomesScene scene{HomeBlocks(blocks)};
    for (int event = 0; event < 1'500; ++event) {
      const int dice = below(100);
      if (dice < 30) {
        const int longest = scene.joined() && below(8) == 0 ? 120 : 40;
        (void)scene.add(below(count), below(6), 1 + below(longest), 1 + below(20));
      } else if (dice < 33) {
        scene.cancel(RequestId{
            1 + static_cast<std::uint64_t>(below(static_cast<int>(scene.last_request()) + 1))});
      } else if (dice < 37) {
        if (!scene.joined()) {
          scene.join();
          ++joins;
        } else if (scene.split(below(3) == 0)) {
          ++refused;
        }
      } else {
        scene.step(scene.joined() ? 0 : below(count));
      }
      if (testing::Test::HasFailure()) {
        FAIL() << "seed " << seed;
      }
    }
    scene.finish_all();
    moves += scene.moves;
    preempted += scene.preempted;
    hits += scene.scheduler(0).observe().prefix_hit_tokens_total;
  }
  EXPECT_GT(joins, 500);
  EXPECT_GT(moves, 500);
  EXPECT_GT(refused, 50);
  EXPECT_GT(preempted, 20);
  EXPECT_GT(hits, 10'000);
}

}  // namespace
}  // namespace protean

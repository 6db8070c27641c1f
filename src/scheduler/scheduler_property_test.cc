#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"

// Random traffic against the scheduler, with KV simulated so exactly that any cell read with the
// wrong content shows, wherever the mistake was made: in block tables, reuse, order or release.

namespace protean {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xBF58476D1CE4E5B9ULL;
  return hash ^ (hash >> 31);
}

std::uint64_t chain_start(const std::string& salt) {
  return mix(7, std::hash<std::string>{}(salt));
}

std::uint64_t chain_next(std::uint64_t chain, TokenId token) {
  return mix(chain, static_cast<std::uint64_t>(token) + 1);
}

class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  int below(std::int64_t limit) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(limit));
  }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::mt19937 random_;
};

// A request as its sender knows it. It stays known after it ended: steps in flight still name it.
struct Client {
  std::vector<TokenId> tokens;  // prompt, then output
  std::string salt;
  std::uint64_t taste = 0;  // decides what is drawn; few differ, so that outputs repeat as well
  int left = 0;             // tokens still to draw
  int next = -1;  // where its next slice begins if it keeps its KV; -1 before it first runs
};

using Clients = std::map<RequestId, Client>;

struct Step {
  StepPlan plan;
  unsigned tag = 0;            // precision tag when it was planned
  std::set<RequestId> placed;  // admitted by this plan, for the first time or again
  bool executed = false;
  bool failed = false;
  std::vector<TokenId> sampled;
};

// KV whose cells hold a hash of everything they depend on: salt, all tokens up to theirs and,
// apart, the precision tags of all steps that went into them. Writing continues the chain from
// whatever the previous cell really holds, so a wrong prefix stays wrong in all that is computed
// after it.
class SimulatedKv {
 public:
  explicit SimulatedKv(const SchedulerConfig& config)
      : block_tokens_(config.block_tokens),
        cells_(static_cast<std::size_t>(config.kv_blocks * config.block_tokens)) {}

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
    unsigned tags = 0;  // bit per precision tag
  };

  Cell& cell(const StepPlan& plan, const SequenceSlice& slice, int position) {
    const BlockId block =
        plan.blocks[static_cast<std::size_t>(slice.block_begin + position / block_tokens_)];
    return cells_[static_cast<std::size_t>(block) * static_cast<std::size_t>(block_tokens_) +
                  static_cast<std::size_t>(position % block_tokens_)];
  }

  // What a newcomer finds in the prefix cache was computed at the precisions of now alone.
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

// How often the interesting things happened, so that the test notices if it stops provoking them.
struct Coverage {
  std::int64_t reused_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t failed_steps = 0;
  std::int64_t tag_changes = 0;
  std::int64_t steps_behind_others = 0;  // planned while another was in flight
};

// One seed: a random configuration and random events. Steps are planned ahead of execution and
// completed late, but execute and complete in order, as on a device queue.
class Trial {
 public:
  Trial(unsigned seed, Coverage& coverage)
      : coverage_(coverage),
        dice_(seed),
        config_(random_config(dice_)),
        depth_(1 + dice_.below(4)),
        vocabulary_(1 + dice_.below(4)),
        cancel_percent_(dice_.below(20)),
        fail_percent_(dice_.chance(33) ? dice_.below(20) : 0),
        tag_percent_(dice_.chance(50) ? dice_.below(20) : 0),
        scheduler_(config_),
        kv_(config_) {}

  void run() {
    for (int event = 0; event < 400 && !testing::Test::HasFailure(); ++event) {
      happen();
      const Observation now = scheduler_.observe();
      ASSERT_EQ(now.running + now.waiting, std::ssize(alive_));
    }
    drain();
  }

 private:
  static SchedulerConfig random_config(Dice& dice) {
    SchedulerConfig config;
    config.block_tokens = 1 + dice.below(4);
    config.kv_blocks = dice.chance(20) ? 100 + dice.below(200) : 3 + dice.below(30);
    config.max_num_seqs = 1 + dice.below(8);
    config.max_num_batched_tokens = 1 + dice.below(20);
    config.max_model_len = 2 + dice.below(config.kv_blocks * config.block_tokens + 6);
    config.prefix_caching = dice.chance(85);
    return config;
  }

  void happen() {
    const int what = dice_.below(100);
    if (what < 8) {
      for (int burst = dice_.below(12); burst > 0; --burst) {
        arrive();
      }
    } else if (what < 20) {
      arrive();
    } else if (what < 20 + cancel_percent_ && !alive_.empty()) {
      end(*std::next(alive_.begin(), dice_.below(std::ssize(alive_))));
      plan_ahead();
    } else if (what < 55 && dice_.chance(tag_percent_)) {
      tag_ = static_cast<unsigned>(dice_.below(3));
      scheduler_.set_precision_tag(tag_);
      ++coverage_.tag_changes;
    } else if (what < 55) {
      execute_next();
    } else {
      complete_next();
    }
  }

  void arrive() {
    Request request;
    request.id = RequestId{++last_request_};
    const int longest = config_.max_model_len - 1;
    const int count = 1 + dice_.below(dice_.chance(50) ? std::min(longest, 8) : longest);
    const auto topic = static_cast<std::uint64_t>(dice_.below(3));  // prompts of one begin alike
    for (int i = 0; i < count; ++i) {
      request.prompt.push_back(dice_.chance(8) ? dice_.below(vocabulary_)
                                               : word(mix(topic, static_cast<std::uint64_t>(i))));
    }
    request.max_tokens = 1 + dice_.below(config_.max_model_len);
    request.cache_salt = dice_.chance(25) ? "salt" : "";
    Client client{.tokens = request.prompt,
                  .salt = request.cache_salt,
                  .taste = static_cast<std::uint64_t>(dice_.below(3)),
                  .left = request.max_tokens};
    const RequestId id = request.id;
    if (scheduler_.add(std::move(request)).ok()) {
      clients_.emplace(id, std::move(client));
      alive_.insert(id);
    }
    plan_ahead();
  }

  TokenId word(std::uint64_t hash) const {
    return static_cast<TokenId>(hash % static_cast<std::uint64_t>(vocabulary_));
  }

  TokenId draw(const Client& client) const {
    std::uint64_t hash = client.taste;
    for (const TokenId token : client.tokens) {
      hash = chain_next(hash, token);
    }
    return word(hash);
  }

  void end(RequestId id) {
    scheduler_.remove(id);
    alive_.erase(id);
  }

  void plan_ahead() {
    while (std::ssize(in_flight_) < depth_) {
      std::optional<StepPlan> plan = scheduler_.next_step();
      if (!plan) {
        break;
      }
      expect_fair(*plan);
      expect_writers_alone(*plan);
      coverage_.steps_behind_others += in_flight_.empty() ? 0 : 1;
      std::set<RequestId> placed = follow(*plan);
      in_flight_.push_back({.plan = *std::move(plan), .tag = tag_, .placed = std::move(placed)});
    }
    ASSERT_TRUE(!in_flight_.empty() || scheduler_.idle()) << "requests wait, but nothing runs";
  }

  // Within the limits, and no sequence in two steps at a time.
  void expect_fair(const StepPlan& plan) {
    EXPECT_FALSE(plan.slices.empty());
    EXPECT_LE(std::ssize(plan.slices), config_.max_num_seqs);
    EXPECT_LE(std::ssize(plan.tokens), config_.max_num_batched_tokens);
    std::set<RequestId> busy;
    for (const Step& step : in_flight_) {
      for (const SequenceSlice& slice : step.plan.slices) {
        busy.insert(slice.request);
      }
    }
    for (const SequenceSlice& slice : plan.slices) {
      ASSERT_TRUE(alive_.contains(slice.request));
      ASSERT_TRUE(busy.insert(slice.request).second) << "request " << slice.request.value;
    }
  }

  // A block that a step writes is in no other block table of the step: kernels run side by side.
  void expect_writers_alone(const StepPlan& plan) {
    std::map<BlockId, int> users;
    for (const BlockId block : plan.blocks) {
      ASSERT_TRUE(block >= 0 && block < config_.kv_blocks);
      ++users[block];
    }
    for (const SequenceSlice& slice : plan.slices) {
      const int last = (slice.first_position + slice.token_count - 1) / config_.block_tokens;
      for (int i = slice.first_position / config_.block_tokens; i <= last; ++i) {
        const BlockId block = plan.blocks[static_cast<std::size_t>(slice.block_begin + i)];
        ASSERT_EQ(users[block], 1) << "block " << block << " is written and shared";
      }
    }
  }

  // Returns who was placed by this plan.
  std::set<RequestId> follow(const StepPlan& plan) {
    std::set<RequestId> placed;
    for (const SequenceSlice& slice : plan.slices) {
      Client& client = clients_.at(slice.request);
      if (slice.first_position != client.next) {
        placed.insert(slice.request);
        coverage_.reused_tokens += slice.first_position;
      }
      client.next = slice.first_position + slice.token_count;
    }
    return placed;
  }

  void execute_next() {
    const auto step = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [](const Step& candidate) { return !candidate.executed; });
    if (step != in_flight_.end()) {
      execute(*step);
    }
  }

  // A failed step writes nothing at all.
  void execute(Step& step) {
    step.executed = true;
    step.failed = dice_.chance(fail_percent_);
    if (step.failed) {
      ++coverage_.failed_steps;
      return;
    }
    step.sampled.resize(step.plan.samples.size());
    for (const SequenceSlice& slice : step.plan.slices) {
      const Client& client = clients_.at(slice.request);
      kv_.execute(step, slice, client);
      const bool at_end = slice.first_position + slice.token_count == std::ssize(client.tokens);
      ASSERT_EQ(slice.sample >= 0, at_end) << "only a sequence's last token is sampled after";
      if (at_end) {
        step.sampled.at(static_cast<std::size_t>(slice.sample)) = draw(client);
      }
    }
  }

  void complete_next() {
    if (in_flight_.empty()) {
      return;
    }
    if (!in_flight_.front().executed) {
      execute(in_flight_.front());
    }
    const Step step = std::move(in_flight_.front());
    in_flight_.pop_front();
    StepResult result{.id = step.plan.id, .sampled = step.sampled, .failure = {}};
    if (step.failed) {
      result.failure = Error{ErrorCode::kInternal, "simulated"};
    }
    const StepOutcome outcome = scheduler_.complete(result);
    EXPECT_TRUE(outcome.failed.empty() || step.failed);
    for (const RequestId id : outcome.failed) {
      end(id);
    }
    for (const Sampled& sampled : outcome.sampled) {
      Client& client = clients_.at(sampled.request);
      client.tokens.push_back(sampled.token);
      if (--client.left == 0 || dice_.chance(3)) {
        end(sampled.request);
      }
    }
    plan_ahead();
  }

  // Everything ends in a bounded number of steps and gives all blocks back.
  void drain() {
    fail_percent_ = 0;
    for (int steps = 0; !in_flight_.empty() && !testing::Test::HasFailure(); ++steps) {
      ASSERT_LT(steps, 200'000) << "no end in sight";
      complete_next();
    }
    ASSERT_FALSE(testing::Test::HasFailure());
    EXPECT_TRUE(scheduler_.idle());
    EXPECT_TRUE(alive_.empty());
    EXPECT_EQ(scheduler_.observe().kv_blocks_used, 0);
    coverage_.preemptions += scheduler_.observe().preemptions_total;
  }

  Coverage& coverage_;
  Dice dice_;
  const SchedulerConfig config_;
  const int depth_;       // steps in flight
  const int vocabulary_;  // small, so that prefixes repeat
  const int cancel_percent_;
  int fail_percent_;
  const int tag_percent_;
  Scheduler scheduler_;
  SimulatedKv kv_;
  Clients clients_;
  std::set<RequestId> alive_;
  std::deque<Step> in_flight_;
  std::uint64_t last_request_ = 0;
  unsigned tag_ = 0;
};

TEST(SchedulerProperty, EverySequenceReadsItsOwnKv) {
  Coverage coverage;
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Trial(seed, coverage).run();
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GT(coverage.reused_tokens, 1000);
  EXPECT_GT(coverage.preemptions, 1000);
  EXPECT_GT(coverage.failed_steps, 100);
  EXPECT_GT(coverage.tag_changes, 100);
  EXPECT_GT(coverage.steps_behind_others, 1000);
}

}  // namespace
}  // namespace protean

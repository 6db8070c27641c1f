#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "base/repetitions_for_test.h"
#include "base/units.h"
#include "scheduler/changing_kv_for_test.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulated_kv_for_test.h"

// Random traffic against the scheduler. The simulated KV detects every read of a wrong cell,
// whether block tables, reuse, order or release caused it.

namespace protean {
namespace {

// A random configuration and random events, from one seed. Steps are planned ahead of execution and
// completed late, but execute and complete in order, as on a device queue.
class Trial {
 public:
  Trial(unsigned seed, Coverage& coverage)
      : coverage_(coverage),
        dice_(seed),
        config_(random_config(dice_)),
        depth_(config_.steps_in_flight > 1 ? config_.steps_in_flight : 1 + dice_.below(4)),
        vocabulary_(1 + dice_.below(4)),
        cancel_percent_(dice_.below(20)),
        fail_percent_(dice_.chance(33) ? dice_.below(20) : 0),
        tag_percent_(dice_.chance(50) ? dice_.below(20) : 0),
        resize_percent_(dice_.chance(50) ? 10 + dice_.below(30) : 0),
        call_percent_(dice_.chance(50) ? 50 : 0),
        scheduler_(config_),
        kv_(config_, scheduler_) {}

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
    config.largest_kv_blocks = config.kv_blocks + dice.below(30);
    config.max_model_len = 2 + dice.below(config.kv_blocks * config.block_tokens + 6);
    config.prefix_caching = dice.chance(85);
    config.steps_in_flight = dice.chance(50) ? 1 : 2 + dice.below(3);
    config.balance.per_position = dice.chance(50) ? 0 : 0.05;
    config.balance.longest_first = dice.chance(40);
    config.balance.least_tokens = dice.chance(50) ? 0 : dice.below(12);
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
    } else if (what < 55 && dice_.chance(resize_percent_)) {
      kv_.change(dice_, in_flight_, coverage_);
      plan_ahead();
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
    const auto topic =
        static_cast<std::uint64_t>(dice_.below(3));  // prompts of a topic begin alike
    for (int i = 0; i < count; ++i) {
      request.prompt.push_back(dice_.chance(8) ? dice_.below(vocabulary_)
                                               : word(mix(topic, static_cast<std::uint64_t>(i))));
    }
    request.max_tokens = 1 + dice_.below(config_.max_model_len);
    request.cache_salt = dice_.chance(25) ? "salt" : "";
    ask_for_more(request);
    Client client{.tokens = request.prompt,
                  .salt = request.cache_salt,
                  .taste = static_cast<std::uint64_t>(dice_.below(3)),
                  .left = request.max_tokens,
                  .place = {request.priority, dice_.below(3)},
                  .prompt = count,
                  .draws = request.max_tokens > 0,
                  .wants_scores = request.logprobs.prompt,
                  .pooling = request.pooling,
                  .call = request.call};
    const RequestId id = request.id;
    if (scheduler_.add(std::move(request), client.place.second).ok()) {
      client.place.second = scheduler_.due_ns(id);
      clients_.emplace(id, std::move(client));
      alive_.insert(id);
    }
    plan_ahead();
  }

  void ask_for_more(Request& request) {
    request.priority = dice_.below(2);
    request.call =
        RequestId{dice_.chance(call_percent_) ? 1U + static_cast<unsigned>(dice_.below(2)) : 0U};
    request.logprobs.prompt = dice_.chance(15);
    if (dice_.chance(15)) {
      request.pooling = dice_.chance(50) ? Pooling::kMean : Pooling::kLast;
    }
    if (request.pooling != Pooling::kNone || dice_.chance(5)) {
      request.max_tokens = 0;
    }
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
      const bool cuts = std::any_of(alive_.begin(), alive_.end(), [&](RequestId id) {
        const Client& client = clients_.at(id);
        return client.next >= 0 && client.next + 1 < std::ssize(client.tokens);
      });
      std::set<RequestId> placed = follow(*plan);
      for (const RequestId id : placed) {
        expect_in_order(id, placed, cuts);
      }
      in_flight_.push_back({.plan = *std::move(plan), .tag = tag_, .placed = std::move(placed)});
    }
    if (in_flight_.empty() && !scheduler_.idle()) {
      ASSERT_TRUE(scheduler_.waits_for_larger_kv()) << "requests wait, but nothing runs";
      ++coverage_.waits_for_larger_kv;
    }
  }

  // Checks that the plan is within the limits and that no sequence is in two steps at a time, but
  // for consecutive chunks of a prompt where work is divided among steps.
  void expect_fair(const StepPlan& plan) {
    EXPECT_FALSE(plan.slices.empty());
    EXPECT_LE(std::ssize(plan.slices), config_.max_num_seqs);
    EXPECT_LE(std::ssize(plan.tokens), config_.max_num_batched_tokens);
    std::map<RequestId, SequenceSlice> busy;
    for (const Step& step : in_flight_) {
      for (const SequenceSlice& slice : step.plan.slices) {
        busy[slice.request] = slice;
      }
    }
    std::set<RequestId> once;
    for (const SequenceSlice& slice : plan.slices) {
      ASSERT_TRUE(alive_.contains(slice.request));
      ASSERT_TRUE(once.insert(slice.request).second) << "request " << slice.request.value;
      if (const auto before = busy.find(slice.request); before != busy.end()) {
        const SequenceSlice& chunk = before->second;
        ASSERT_GT(config_.steps_in_flight, 1) << "request " << slice.request.value;
        ASSERT_EQ(slice.first_position, chunk.first_position + chunk.token_count);
        ASSERT_LT(chunk.sample, 0) << "a token that is not drawn yet cannot be computed";
        ++coverage_.chunks_in_flight;
      }
    }
  }

  // Checks that a block that a step writes is in no other block table of the step: slices are
  // computed concurrently.
  void expect_writers_alone(const StepPlan& plan) {
    std::map<BlockId, int> users;
    for (const BlockId block : plan.blocks) {
      ASSERT_TRUE(block >= 0 && block < kv_.blocks()) << "no such block";
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

  // Records each slice and returns the requests that this plan admits.
  std::set<RequestId> follow(const StepPlan& plan) {
    std::set<RequestId> placed;
    for (const SequenceSlice& slice : plan.slices) {
      Client& client = clients_.at(slice.request);
      if (slice.first_position != client.next) {
        placed.insert(slice.request);
        coverage_.reused_tokens += slice.first_position;
      }
      client.next = slice.first_position + slice.token_count;
      first_positions_[slice.request] = slice.first_position;
    }
    return placed;
  }

  bool comes_before(RequestId a, RequestId b) const {
    return std::pair(clients_.at(a).place, a) < std::pair(clients_.at(b).place, b);
  }

  std::int64_t blocks_of(const Client& client) const {
    return ceil_div(std::ssize(client.tokens), std::int64_t{config_.block_tokens});
  }

  // Returns the tokens in whole blocks that both begin with and that `user` may reuse.
  int shared_tokens(const Client& user, const Client& owner) const {
    if (user.salt != owner.salt || !user.reuses() || !config_.prefix_caching) {
      return 0;
    }
    const auto end = std::mismatch(user.tokens.begin(), user.tokens.end() - 1, owner.tokens.begin(),
                                   owner.tokens.end());
    const auto shared = static_cast<int>(end.first - user.tokens.begin());
    return shared - shared % config_.block_tokens;
  }

  // Checks that an admitted sequence has overtaken only sequences that wait for a prefix or whose
  // call has others that run, and that it computes no prefix that an earlier one computes. `cuts`:
  // a part of a prompt was computed before.
  void expect_in_order(RequestId admitted, const std::set<RequestId>& placed, bool cuts) {
    const Client& client = clients_.at(admitted);
    const bool undisturbed =
        tag_percent_ == 0 && resize_percent_ == 0 && scheduler_.observe().preemptions_total == 0;
    const int begins_at = first_positions_.at(admitted);
    for (const RequestId other : alive_) {
      const Client& before = clients_.at(other);
      if (!comes_before(other, admitted)) {
        continue;
      }
      if (blocks_of(before) > kv_.limit()) {
        ++coverage_.waits_for_larger_kv;
      } else if (before.next < 0) {
        const bool waits = std::any_of(alive_.begin(), alive_.end(), [&](RequestId owner) {
          const Client& running = clients_.at(owner);
          return running.next >= 0 &&
                 ((before.call.value != 0 && running.call == before.call) ||
                  (comes_before(owner, other) && shared_tokens(before, running) > 0));
        });
        // A sequence that took a call's room may have been admitted before the other one came.
        const bool displaced = config_.steps_in_flight > 1 &&
                               std::any_of(clients_.begin(), clients_.end(), [](const auto& entry) {
                                 return entry.second.call.value != 0;
                               });
        // A dealt prompt may overtake one of its priority, except the first that is not cut.
        const bool certain = !cuts && scheduler_.observe().preemptions_total == 0 &&
                             std::none_of(placed.begin(), placed.end(),
                                          [&](RequestId id) { return comes_before(id, other); });
        const bool dealt = config_.balance.longest_first && config_.steps_in_flight > 1 &&
                           before.place.first == client.place.first && !certain;
        ASSERT_TRUE(waits || displaced || dealt) << admitted.value << " overtook " << other.value;
        ++coverage_.passed_over;
      } else if (undisturbed) {
        const int shared = shared_tokens(client, before);
        ASSERT_GE(begins_at, shared)
            << admitted.value << " computes what " << other.value << " does";
        coverage_.shared_prompts += shared > 0 ? 1 : 0;
      }
    }
  }

  void execute_next() {
    const auto step = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [](const Step& candidate) { return !candidate.executed; });
    if (step != in_flight_.end()) {
      execute(*step);
    }
  }

  void execute(Step& step) {
    step.executed = true;
    step.failed = dice_.chance(fail_percent_);
    if (step.failed) {
      ++coverage_.failed_steps;
      for (const SequenceSlice& slice : step.plan.slices) {
        clients_.at(slice.request).failed = true;
      }
    } else {
      compute(step);
    }
    kv_.after(step);
  }

  // Executes a step that does not fail; a failed step writes nothing.
  void compute(Step& step) {
    step.sampled.resize(step.plan.samples.size());
    for (const SequenceSlice& slice : step.plan.slices) {
      Client& client = clients_.at(slice.request);
      if (client.failed) {
        continue;
      }
      kv_.content().execute(step, slice, client);
      score(step, slice, client);
      pool(slice, client);
      const bool at_end = slice.first_position + slice.token_count == std::ssize(client.tokens);
      ASSERT_EQ(slice.sample >= 0, at_end && client.draws)
          << "only a sequence's last token is sampled after";
      if (slice.sample >= 0) {
        step.sampled.at(static_cast<std::size_t>(slice.sample)) = draw(client);
      }
    }
  }

  // Checks that each prompt token but the first is scored once and in order, in spite of
  // preemption. A score's logprob is its request and its rank its position.
  void score(Step& step, const SequenceSlice& slice, Client& client) {
    ASSERT_TRUE(client.wants_scores || slice.score_count == 0);
    for (int i = 0; i < slice.score_count; ++i) {
      const ScoreSpec& spec = step.plan.scores[static_cast<std::size_t>(slice.score_begin + i)];
      const int position = slice.first_position + spec.after - slice.token_begin + 1;
      ASSERT_EQ(position, client.scored) << "request " << slice.request.value;
      ASSERT_LT(position, client.prompt);
      ASSERT_EQ(spec.token, client.tokens[static_cast<std::size_t>(position)]);
      ++client.scored;
      step.scored.push_back({.logprob = static_cast<float>(slice.request.value), .rank = position});
    }
    if (client.wants_scores) {
      const int computed = slice.first_position + slice.token_count;
      ASSERT_GE(client.scored, std::min(computed + 1, client.prompt)) << "a token is not scored";
    }
  }

  void pool(const SequenceSlice& slice, Client& client) {
    const int end = slice.first_position + slice.token_count;
    if (client.pooling != Pooling::kMean) {
      ASSERT_EQ(slice.pooling, end == client.prompt ? client.pooling : Pooling::kNone);
      return;
    }
    ASSERT_EQ(slice.pooling, Pooling::kMean);
    if (slice.first_position == 0) {
      coverage_.pooled_again += client.pooled > 0 ? 1 : 0;
      client.pooled = 0;
    }
    ASSERT_EQ(slice.first_position, client.pooled) << "a row is missing or counted twice";
    client.pooled = end;
  }

  void hear(const StepOutcome& outcome) {
    for (const Scored& part : outcome.scored) {
      Client& client = clients_.at(part.request);
      ASSERT_EQ(part.first_position, client.delivered);
      for (const TokenLogprobs& one : part.logprobs) {
        ASSERT_EQ(one.logprob, static_cast<float>(part.request.value));
        ASSERT_EQ(one.rank, client.delivered++);
        ++coverage_.scored_tokens;
      }
    }
    for (const RequestId id : outcome.computed) {
      const Client& client = clients_.at(id);
      ASSERT_FALSE(client.draws);
      ASSERT_TRUE(client.pooling != Pooling::kMean || client.pooled == client.prompt);
      ASSERT_TRUE(!client.wants_scores || client.delivered == client.prompt);
      end(id);
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
    StepResult result{.id = step.plan.id, .sampled = step.sampled, .scored = step.scored};
    for (const SequenceSlice& slice : step.plan.slices) {
      if (slice.pooling != Pooling::kNone) {
        result.pooled.emplace_back();
      }
    }
    if (step.failed) {
      result.failure = Error{ErrorCode::kInternal, "simulated"};
    }
    if (!step.failed && dice_.chance(fail_percent_ / 2)) {
      result.failed.push_back({step.plan.slices.front().request, "alone"});
      ++coverage_.failed_alone;
    }
    const StepOutcome outcome = scheduler_.complete(result);
    for (const RequestFailure& failure : outcome.failed) {
      EXPECT_TRUE(step.failed || failure.why == "alone");
      end(failure.request);
    }
    hear(outcome);
    for (const Sampled& sampled : outcome.sampled) {
      Client& client = clients_.at(sampled.request);
      ASSERT_TRUE(!client.wants_scores || client.delivered == client.prompt);
      client.tokens.push_back(sampled.token);
      if (--client.left == 0 || dice_.chance(3)) {
        end(sampled.request);
      }
    }
    plan_ahead();
  }

  // Checks that all requests end in a bounded number of steps and release all blocks once KV is as
  // large as it may get.
  void drain() {
    fail_percent_ = 0;
    kv_.grow_to(config_.largest_kv_blocks, in_flight_);
    plan_ahead();
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
  const int resize_percent_;
  const int call_percent_;  // requests whose calls have others
  Scheduler scheduler_;
  ChangingKv kv_;
  Clients clients_;
  std::set<RequestId> alive_;
  std::map<RequestId, int> first_positions_;  // of the last slices
  std::deque<Step> in_flight_;
  std::uint64_t last_request_ = 0;
  unsigned tag_ = 0;
};

TEST(SchedulerProperty, EverySequenceReadsItsOwnKv) {
  Coverage coverage;
  for (int seed = 0; seed < repetitions(300); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Trial(static_cast<unsigned>(seed), coverage).run();
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(coverage.reused_tokens, repetitions(1000));
  EXPECT_GT(coverage.preemptions, repetitions(1000));
  EXPECT_GT(coverage.failed_steps, repetitions(100));
  EXPECT_GT(coverage.failed_alone, repetitions(100));
  EXPECT_GT(coverage.tag_changes, repetitions(100));
  EXPECT_GT(coverage.steps_behind_others, repetitions(1000));
  EXPECT_GT(coverage.chunks_in_flight, repetitions(1000));
  EXPECT_GT(coverage.scored_tokens, repetitions(1000));
  EXPECT_GT(coverage.pooled_again, repetitions(10));
  EXPECT_GT(coverage.passed_over, repetitions(100));
  EXPECT_GT(coverage.shared_prompts, repetitions(100));
  EXPECT_GT(coverage.grows, repetitions(100));
  EXPECT_GT(coverage.shrinks, repetitions(100));
  EXPECT_GT(coverage.cancelled_shrinks, repetitions(50));
  EXPECT_GT(coverage.moved_blocks, repetitions(1000));
  EXPECT_GT(coverage.waits_for_larger_kv, repetitions(100));
}

}  // namespace
}  // namespace protean

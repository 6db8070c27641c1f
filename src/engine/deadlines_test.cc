// Deadlines: requests that are cut or refused, and the order of the queue.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace protean {
namespace {

// An engine whose steps take a constant and a time for each token in each of so many stages, in
// simulated time.
class TimedEngine : public Executor, public TokenSink {
 public:
  explicit TimedEngine(const EngineConfig& config)
      : free_ns_(static_cast<std::size_t>(config.max_in_flight)), engine(config, *this, *this) {}

  void prepare(MorphId, const MorphStep&) override {}
  void commit(MorphId) override {}
  void abort(MorphId) override {}
  void move_blocks(std::vector<BlockMove>) override {}
  void start(StepPlan plan) override {
    TimeNs at_ns = now_ns;
    for (TimeNs& free_ns : free_ns_) {
      at_ns = free_ns = std::max(free_ns, at_ns) + step_ns + token_ns * std::ssize(plan.tokens);
    }
    StepResult result{.id = plan.id, .sampled = std::vector<TokenId>(plan.samples.size(), 7)};
    done_.push_back({at_ns, StepDone{std::move(result)}});
  }

  void emit(OutputBatch batch) override {
    for (Output& output : batch.outputs) {
      if (auto* refused = std::get_if<Refused>(&output)) {
        refusals.emplace(refused->request.value, refused->error);
      } else if (auto* finished = std::get_if<Finished>(&output)) {
        ends.emplace(finished->request.value, *finished);
      }
    }
    observation = batch.observation;
  }

  // Handles ends of steps and ticks up to this time.
  void run_until(TimeNs until_ns) {
    for (;;) {
      const auto tick_ns = engine.next_deadline_ns();
      const bool tick = tick_ns && (done_.empty() || *tick_ns < done_.front().at_ns);
      const TimeNs next_ns = tick ? *tick_ns : done_.empty() ? until_ns + 1 : done_.front().at_ns;
      if (next_ns > until_ns) {
        now_ns = until_ns;
        return;
      }
      now_ns = std::max(now_ns, next_ns);
      if (tick) {
        ++ticks;
        engine.handle({now_ns, Tick{}});
      } else {
        Event event = std::move(done_.front());
        done_.pop_front();
        engine.handle(std::move(event));
      }
    }
  }

  void send(auto what) { engine.handle({now_ns, std::move(what)}); }

  void arrive(std::uint64_t id, int prompt, int output, Deadlines deadlines = {}) {
    Request request;
    request.id = RequestId{id};
    for (int i = 0; i < prompt; ++i) {
      request.prompt.push_back(static_cast<TokenId>(id % 1000) * 1000 + i);
    }
    request.max_tokens = output;
    request.deadlines = deadlines;
    send(Arrival{std::move(request)});
  }

  TimeNs step_ns = 10 * kNsPerMs;
  TimeNs token_ns = 1 * kNsPerMs;
  TimeNs now_ns = 0;
  int ticks = 0;
  std::map<std::uint64_t, Error> refusals;
  std::map<std::uint64_t, Finished> ends;
  Observation observation;

 private:
  std::vector<TimeNs> free_ns_;  // when each stage has done all that was started
  std::deque<Event> done_;

 public:
  Engine engine;
};

EngineConfig small_config() {
  return {.scheduler = {.kv_blocks = 200,
                        .block_tokens = 4,
                        .max_num_seqs = 4,
                        .max_num_batched_tokens = 64,
                        .max_model_len = 400},
          .step_cost = {.fixed_us = 10'000, .token_us = 1'000}};
}

// Runs requests from which the engine learns how long answers are.
void warm_up(TimedEngine& timed) {
  for (std::uint64_t id = 900; id < 920; ++id) {
    timed.arrive(id, 10 + static_cast<int>(id % 7) * 8, 4);
    timed.run_until(timed.now_ns + kNsPerS);
  }
  ASSERT_TRUE(timed.engine.idle());
  timed.ends.clear();
}

TEST(Deadlines, AnAnswerIsCutWhenItsTimeIsOver) {
  TimedEngine timed(small_config());
  timed.arrive(1, 10, 300, {.finish_ns = 200 * kNsPerMs});
  EXPECT_EQ(timed.engine.next_deadline_ns(), 200 * kNsPerMs);
  timed.run_until(kNsPerS);
  ASSERT_TRUE(timed.ends.contains(1));
  const Finished& end = timed.ends.at(1);
  EXPECT_EQ(end.reason, FinishReason::kTimeout);
  EXPECT_EQ(end.usage.output_tokens, 17);  // 20 ms for the first, then 11 ms each
  EXPECT_EQ(end.times.finished_ns, 200 * kNsPerMs);
  EXPECT_EQ(timed.observation.kv_blocks_used, 0);
  EXPECT_EQ(timed.engine.next_deadline_ns(), std::nullopt);
  EXPECT_EQ(timed.ticks, 1);
}

TEST(Deadlines, WaitingRequestsAreCutToo) {
  EngineConfig config = small_config();
  config.scheduler.max_num_seqs = 1;
  TimedEngine timed(config);
  timed.arrive(1, 10, 300);
  timed.arrive(2, 10, 3, {.finish_ns = 50 * kNsPerMs});
  timed.run_until(60 * kNsPerMs);
  ASSERT_TRUE(timed.ends.contains(2));
  EXPECT_EQ(timed.ends.at(2).reason, FinishReason::kTimeout);
  EXPECT_LT(timed.ends.at(2).times.scheduled_ns, 0);
  EXPECT_EQ(timed.observation.waiting, 0);
  EXPECT_FALSE(timed.ends.contains(1));
}

TEST(Deadlines, AnAnswerThatEndsInTimeLeavesNoTimerBehind) {
  TimedEngine timed(small_config());
  timed.arrive(1, 10, 3, {.first_token_ns = kNsPerS, .finish_ns = 2 * kNsPerS});
  timed.arrive(2, 10, 3, {.finish_ns = 2 * kNsPerS});
  timed.send(Cancel{RequestId{2}});
  timed.run_until(500 * kNsPerMs);
  EXPECT_EQ(timed.ends.at(1).reason, FinishReason::kLength);
  EXPECT_EQ(timed.engine.next_deadline_ns(), std::nullopt);
  timed.run_until(3 * kNsPerS);
  EXPECT_EQ(timed.ticks, 0);
  EXPECT_TRUE(timed.engine.idle());
}

TEST(Deadlines, RequestsThatCannotMakeTheirDeadlineAreRefusedAtOnce) {
  TimedEngine timed(small_config());
  warm_up(timed);
  // 300 tokens take five steps: 5 x 10 ms and 300 x 1 ms.
  timed.arrive(2, 300, 2, {.first_token_ns = timed.now_ns + 300 * kNsPerMs});
  ASSERT_TRUE(timed.refusals.contains(2));
  EXPECT_EQ(timed.refusals.at(2).code, ErrorCode::kExhausted);
  const std::string& message = timed.refusals.at(2).message;
  EXPECT_NE(message.find("within 300 ms"), std::string::npos) << message;
  EXPECT_NE(message.find("about 3"), std::string::npos) << message;
  EXPECT_TRUE(timed.engine.idle());
  timed.arrive(3, 300, 2, {.first_token_ns = timed.now_ns + 400 * kNsPerMs});
  EXPECT_FALSE(timed.refusals.contains(3));
  // Behind request 3, a request that could make its deadline alone cannot, unless it is due
  // earlier.
  timed.arrive(4, 60, 2, {.first_token_ns = timed.now_ns + 390 * kNsPerMs});
  EXPECT_TRUE(timed.refusals.contains(4));
  timed.run_until(timed.now_ns + kNsPerS);
  EXPECT_EQ(timed.ends.at(3).reason, FinishReason::kLength) << "it began in time";
  EXPECT_GT(timed.ends.at(3).times.first_token_ns, 0);
  EXPECT_LE(timed.ends.at(3).times.first_token_ns - timed.ends.at(3).times.arrived_ns,
            400 * kNsPerMs);
}

TEST(Deadlines, WithoutTheCostOfStepsNoRequestIsRefused) {
  EngineConfig config = small_config();
  config.step_cost = {};
  TimedEngine timed(config);
  timed.arrive(1, 100, 2, {.first_token_ns = 1});
  EXPECT_TRUE(timed.refusals.empty());
}

// Steps take twice as long as they are expected to, until the engine has learned it.
TEST(Deadlines, AMachineThatIsSlowerThanItsCostIsNoticed) {
  EngineConfig config = small_config();
  TimedEngine timed(config);
  timed.step_ns *= 2;
  timed.token_ns *= 2;
  timed.arrive(1, 60, 2, {.first_token_ns = 100 * kNsPerMs});
  EXPECT_TRUE(timed.refusals.empty()) << "70 ms are expected";
  timed.run_until(kNsPerS);
  warm_up(timed);
  timed.arrive(2, 60, 2, {.first_token_ns = timed.now_ns + 100 * kNsPerMs});
  EXPECT_TRUE(timed.refusals.contains(2)) << "it takes 140 ms";
}

// A stream that has a pipeline for itself waits for all stages in each step, where a queue of
// prompts waits for the slowest.
TEST(Deadlines, AStreamAloneInAPipelineTeachesNothingWrong) {
  EngineConfig config = small_config();
  config.max_in_flight = config.scheduler.steps_in_flight = 2;
  config.step_cost = {.fixed_us = 5'000, .token_us = 500};
  config.path_cost = {.fixed_us = 10'000, .token_us = 1'000};
  TimedEngine timed(config);
  timed.step_ns /= 2;
  timed.token_ns /= 2;
  warm_up(timed);
  timed.arrive(1, 10, 300);
  timed.run_until(timed.now_ns + 5 * kNsPerS);
  ASSERT_TRUE(timed.engine.idle());
  const TimeNs begun_ns = timed.now_ns;
  for (std::uint64_t id = 2; id < 6; ++id) {
    timed.arrive(id, 60, 1);
  }
  timed.arrive(6, 60, 1, {.first_token_ns = begun_ns + 280 * kNsPerMs});
  EXPECT_TRUE(timed.refusals.empty()) << timed.refusals.at(6).message;
  timed.run_until(begun_ns + kNsPerS);
  EXPECT_LE(timed.ends.at(6).times.first_token_ns, begun_ns + 280 * kNsPerMs);
}

TEST(Deadlines, ARequestThatIsTooLongIsABadRequestAndNotALateOne) {
  TimedEngine timed(small_config());
  warm_up(timed);
  timed.arrive(1, 500, 2, {.first_token_ns = timed.now_ns + 1});
  EXPECT_EQ(timed.refusals.at(1).code, ErrorCode::kInvalidArgument);
}

TEST(Deadlines, AWaitingRequestEndsOnceItCannotMakeItsDeadline) {
  EngineConfig config = small_config();
  config.scheduler.max_num_seqs = 1;
  TimedEngine timed(config);
  warm_up(timed);
  timed.arrive(1, 10, 100);  // runs for more than a second, longer than the answers before
  const TimeNs begin_ns = timed.now_ns;
  timed.arrive(2, 60, 2, {.first_token_ns = begin_ns + 500 * kNsPerMs});
  ASSERT_FALSE(timed.refusals.contains(2));
  timed.run_until(begin_ns + kNsPerS);
  ASSERT_TRUE(timed.ends.contains(2));
  EXPECT_EQ(timed.ends.at(2).reason, FinishReason::kTimeout);
  EXPECT_LT(timed.ends.at(2).times.scheduled_ns, 0);
  // Its 60 tokens would take 70 ms.
  EXPECT_NEAR(static_cast<double>(timed.ends.at(2).times.finished_ns - begin_ns), 430e6, 5e6);
}

// The time that a prompt needs is estimated again before it is given up: here it is cached by then.
TEST(Deadlines, ARequestThatNeedsLessTimeByNowIsKept) {
  EngineConfig config = small_config();
  config.scheduler.max_num_seqs = 1;
  TimedEngine timed(config);
  warm_up(timed);
  const TimeNs begin_ns = timed.now_ns;
  timed.arrive(1, 200, 30);                                                   // takes about 570 ms
  timed.arrive(1001, 200, 2, {.first_token_ns = begin_ns + 700 * kNsPerMs});  // the same prompt
  timed.run_until(begin_ns + kNsPerS);
  ASSERT_TRUE(timed.ends.contains(1001));
  EXPECT_EQ(timed.ends.at(1001).reason, FinishReason::kLength);
  EXPECT_GT(timed.ends.at(1001).times.scheduled_ns, begin_ns + 460 * kNsPerMs);
  EXPECT_GT(timed.ticks, 0);
}

TEST(Deadlines, TheRequestWithLessSlackComesFirst) {
  EngineConfig config = small_config();
  config.scheduler.max_num_seqs = 1;
  TimedEngine timed(config);
  warm_up(timed);
  timed.arrive(1, 10, 5);
  const TimeNs now = timed.now_ns;
  timed.arrive(2, 10, 2);
  timed.arrive(3, 10, 2, {.first_token_ns = now + 4 * kNsPerS});
  timed.arrive(4, 10, 2, {.first_token_ns = now + 3 * kNsPerS});
  timed.arrive(5, 60, 2, {.first_token_ns = now + 3 * kNsPerS + kNsPerMs});  // needs 50 ms more
  timed.run_until(now + kNsPerS);
  std::vector<std::pair<TimeNs, std::uint64_t>> order;
  for (const auto& [id, end] : timed.ends) {
    order.emplace_back(end.times.scheduled_ns, id);
  }
  std::sort(order.begin(), order.end());
  ASSERT_EQ(order.size(), 5U);
  EXPECT_EQ(order[1].second, 5U);
  EXPECT_EQ(order[2].second, 4U);
  EXPECT_EQ(order[3].second, 3U);
  EXPECT_EQ(order[4].second, 2U);
}

// A request without a deadline gets its turn, however many urgent ones arrive.
TEST(Deadlines, NoRequestStarves) {
  EngineConfig config = small_config();
  config.scheduler.max_num_seqs = 1;
  TimedEngine timed(config);
  timed.arrive(1, 10, 2);
  timed.arrive(2, 10, 2);
  const TimeNs patience_ns = kDefaultFirstTokenNs;
  for (std::uint64_t id = 10; timed.now_ns < 2 * patience_ns; ++id) {
    timed.arrive(id, 10, 2, {.first_token_ns = timed.now_ns + 500 * kNsPerMs});
    timed.run_until(timed.now_ns +
                    25 * kNsPerMs);  // each takes 31 ms, more than the engine can serve
  }
  ASSERT_TRUE(timed.ends.contains(2));
  EXPECT_GT(timed.ends.at(2).times.scheduled_ns, patience_ns / 2)
      << "urgent requests came before it";
  EXPECT_LT(timed.ends.at(2).times.scheduled_ns, patience_ns + kNsPerS);
}

}  // namespace
}  // namespace protean

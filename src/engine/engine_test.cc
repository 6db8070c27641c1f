#include "engine/engine.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>

#include "engine/recording_sink_for_test.h"

namespace protean {
namespace {

// Keeps plans until the test completes them.
class HeldExecutor : public Executor {
 public:
  void prepare(MorphId, const MorphStep&) override {}
  void commit(MorphId) override {}
  void abort(MorphId) override {}
  void move_blocks(std::vector<BlockMove>) override {}
  void start(StepPlan plan) override { plans.push_back(std::move(plan)); }
  std::deque<StepPlan> plans;
};

struct EngineTest : testing::Test {
  static EngineConfig config() {
    return {.scheduler = {.kv_blocks = 16,
                          .block_tokens = 4,
                          .max_num_seqs = 8,
                          .max_num_batched_tokens = 16,
                          .max_model_len = 48}};
  }
  static Request request(std::uint64_t id, int prompt, int output) {
    Request made;
    made.id = RequestId{id};
    made.max_tokens = output;
    for (int i = 0; i < prompt; ++i) {
      made.prompt.push_back(static_cast<TokenId>(id * 1000) + i);
    }
    return made;
  }
  void send(auto what) { engine.handle({++now_ns, std::move(what)}); }
  // Ends the oldest step; every sequence in it draws `token`.
  void end_step(TokenId token) {
    const StepPlan plan = executor.plans.front();
    executor.plans.pop_front();
    send(StepDone{{.id = plan.id, .sampled = std::vector<TokenId>(plan.samples.size(), token)}});
  }

  HeldExecutor executor;
  RecordingSink sink;
  Engine engine{config(), executor, sink};
  TimeNs now_ns = 0;
};

TEST_F(EngineTest, OneRequestFromArrivalToLength) {
  send(Arrival{request(1, 5, 2)});
  ASSERT_EQ(executor.plans.size(), 1U);
  EXPECT_EQ(executor.plans[0].tokens.size(), 5U);
  end_step(7);
  ASSERT_EQ(executor.plans.size(), 1U);
  EXPECT_EQ(executor.plans[0].tokens, std::vector<TokenId>{7});
  EXPECT_EQ(executor.plans[0].slices[0].first_position, 5);
  EXPECT_EQ(executor.plans[0].samples[0].position, 6);
  end_step(8);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(sink.all<Accepted>().size(), 1U);
  EXPECT_EQ(sink.all<NewToken>().size(), 2U);
  const auto finished = sink.all<Finished>();
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_EQ(finished[0].reason, FinishReason::kLength);
  EXPECT_EQ(finished[0].usage.prompt_tokens, 5);
  EXPECT_EQ(finished[0].usage.output_tokens, 2);
  EXPECT_EQ(finished[0].times.arrived_ns, 1);
  EXPECT_EQ(finished[0].times.scheduled_ns, 1);
  EXPECT_EQ(finished[0].times.first_token_ns, 2);
  EXPECT_EQ(finished[0].times.finished_ns, 3);
}

TEST_F(EngineTest, StopTokenEndsAndIsNotPartOfTheAnswer) {
  Request asks = request(1, 3, 9);
  asks.stop_ids = {50, 51};
  send(Arrival{std::move(asks)});
  end_step(49);
  end_step(51);
  EXPECT_EQ(sink.all<NewToken>().size(), 1U);
  const auto finished = sink.all<Finished>();
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_EQ(finished[0].reason, FinishReason::kStop);
  EXPECT_EQ(finished[0].stop_id, 51);
}

TEST_F(EngineTest, CancelFreesBlocksWithinTheSameEvent) {
  send(Arrival{request(1, 9, 9)});
  EXPECT_GT(sink.observation.kv_blocks_used, 0);
  send(Cancel{RequestId{1}});
  EXPECT_EQ(sink.observation.kv_blocks_used, 0);
  ASSERT_EQ(sink.all<Finished>().size(), 1U);
  EXPECT_EQ(sink.all<Finished>()[0].reason, FinishReason::kCancelled);
  end_step(1);  // its step ends later and changes nothing
  send(Cancel{RequestId{1}});
  EXPECT_EQ(sink.all<Finished>().size(), 1U);
  EXPECT_TRUE(sink.all<NewToken>().empty());
  EXPECT_TRUE(engine.idle());
}

TEST_F(EngineTest, RefusesRequestsThatCanNeverFit) {
  send(Arrival{request(1, 40, 9)});  // 49 tokens > max_model_len
  ASSERT_EQ(sink.all<Refused>().size(), 1U);
  EXPECT_EQ(sink.all<Refused>()[0].error.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(sink.all<Refused>()[0].error.message.find("49 tokens"), std::string::npos);
  EXPECT_TRUE(engine.idle());
  EngineConfig small = config();
  small.scheduler.kv_blocks = 4;
  Engine engine_of_16_tokens(small, executor, sink);
  engine_of_16_tokens.handle({1, Arrival{request(2, 10, 7)}});  // fits: 16 tokens are computed
  engine_of_16_tokens.handle({1, Arrival{request(3, 10, 8)}});
  ASSERT_EQ(sink.all<Refused>().size(), 2U);
  EXPECT_EQ(sink.all<Refused>()[1].request, RequestId{3});
}

TEST_F(EngineTest, FailedStepFailsItsRequestsAndServingGoesOn) {
  send(Arrival{request(1, 3, 4)});
  send(Arrival{request(2, 3, 4)});  // arrives during the first step and is not part of it
  const StepPlan plan = executor.plans.front();
  executor.plans.pop_front();
  send(StepDone{{.id = plan.id, .failure = Error{ErrorCode::kInternal, "device lost"}}});
  ASSERT_EQ(sink.all<Finished>().size(), 1U);
  EXPECT_EQ(sink.all<Finished>()[0].request, RequestId{1});
  EXPECT_EQ(sink.all<Finished>()[0].reason, FinishReason::kFailed);
  EXPECT_EQ(sink.all<Finished>()[0].failure, "device lost");
  EXPECT_FALSE(sink.all<Finished>()[0].may_retry);
  for (int i = 0; i < 4; ++i) {
    end_step(5);
  }
  ASSERT_EQ(sink.all<Finished>().size(), 2U);
  EXPECT_EQ(sink.all<Finished>()[1].reason, FinishReason::kLength);
}

TEST_F(EngineTest, ARequestThatFailsAloneLeavesTheOthersOfItsStep) {
  send(Arrival{request(1, 9, 2)});
  send(Arrival{request(2, 9, 2)});
  end_step(7);
  const StepPlan plan = executor.plans.front();
  ASSERT_EQ(plan.slices.size(), 2U);
  executor.plans.pop_front();
  send(StepDone{{.id = plan.id,
                 .sampled = std::vector<TokenId>(plan.samples.size(), 7),
                 .failed = {{RequestId{2}, "not a number"}}}});
  ASSERT_EQ(sink.all<Finished>().size(), 2U);
  EXPECT_EQ(sink.all<Finished>()[0].request, RequestId{2});
  EXPECT_EQ(sink.all<Finished>()[0].reason, FinishReason::kFailed);
  EXPECT_EQ(sink.all<Finished>()[0].failure, "not a number");
  EXPECT_EQ(sink.all<Finished>()[1].request, RequestId{1});
  EXPECT_EQ(sink.all<Finished>()[1].reason, FinishReason::kLength);
  EXPECT_TRUE(engine.idle());
  send(Arrival{request(2, 9, 2)});
  EXPECT_EQ(executor.plans.front().slices[0].first_position, 0)
      << "blocks that a failed request computed are not reused";
}

TEST_F(EngineTest, LogprobsGoWithTheirTokensAndAreDroppedWithAStop) {
  Request asks = request(1, 3, 9);
  asks.stop_ids = {50};
  asks.logprobs = {.answer = true, .top = 2};
  send(Arrival{std::move(asks)});
  for (const TokenId token : {7, 50}) {
    const StepPlan plan = executor.plans.front();
    executor.plans.pop_front();
    send(StepDone{{.id = plan.id,
                   .sampled = {token},
                   .logprobs = {{.logprob = -0.5F, .rank = 2, .top = {{8, -0.25F}, {7, -0.5F}}}}}});
  }
  const auto tokens = sink.all<NewToken>();
  ASSERT_EQ(tokens.size(), 1U);
  ASSERT_TRUE(tokens[0].logprobs.has_value());
  EXPECT_EQ(tokens[0].logprobs->rank, 2);
  EXPECT_EQ(tokens[0].logprobs->top.size(), 2U);
  EXPECT_EQ(sink.all<Finished>().at(0).reason, FinishReason::kStop);
}

TEST_F(EngineTest, AScoredPromptEndsWithoutAToken) {
  Request asks = request(1, 20, 0);
  asks.logprobs = {.prompt = true};
  send(Arrival{std::move(asks)});
  while (!executor.plans.empty()) {
    const StepPlan plan = executor.plans.front();
    executor.plans.pop_front();
    StepResult result{.id = plan.id};
    for (const ScoreSpec& score : plan.scores) {
      result.scored.push_back({.rank = score.token % 1000});
    }
    send(StepDone{std::move(result)});
  }
  int position = 0;
  for (const PromptScored& part : sink.all<PromptScored>()) {
    EXPECT_EQ(part.first_position, position + 1);
    for (const TokenLogprobs& one : part.logprobs) {
      EXPECT_EQ(one.rank, ++position);
    }
  }
  EXPECT_EQ(position, 19);
  const auto finished = sink.all<Finished>();
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_EQ(finished[0].reason, FinishReason::kLength);
  EXPECT_EQ(finished[0].usage.output_tokens, 0);
  EXPECT_TRUE(sink.all<NewToken>().empty());
  EXPECT_TRUE(engine.idle());
}

TEST_F(EngineTest, AnEmbeddingIsTheMeanOfAllRowsOrTheLast) {
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    Request asks = request(pooling == Pooling::kMean ? 1 : 2, 20, 0);
    asks.pooling = pooling;
    send(Arrival{std::move(asks)});
    while (!executor.plans.empty()) {
      const StepPlan plan = executor.plans.front();
      executor.plans.pop_front();
      StepResult result{.id = plan.id};
      if (plan.slices.at(0).pooling == Pooling::kMean) {
        result.pooled = {{2.0 * static_cast<double>(plan.tokens.size()), 1.0}};
      } else if (plan.slices.at(0).pooling == Pooling::kLast) {
        result.pooled = {{5.0, 6.0}};
      }
      send(StepDone{std::move(result)});
    }
  }
  const auto finished = sink.all<Finished>();
  ASSERT_EQ(finished.size(), 2U);
  EXPECT_EQ(finished[0].embedding, (std::vector<float>{2.0F, 0.1F}));
  EXPECT_EQ(finished[1].embedding, (std::vector<float>{5.0F, 6.0F}));
}

// Random arrivals, cancels, failures, deadlines and numbers of steps in flight, with a model of how
// each request must end.
class EngineStorm : public testing::TestWithParam<int> {};

// Some requests ask for logprobs or embeddings, and some have deadlines.
void ask_for_more(Request& asks, std::mt19937& random, TimeNs now_ns) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  asks.priority = below(2);
  asks.min_tokens = below(4);
  asks.logprobs = {.answer = below(5) == 0, .prompt = below(5) == 0};
  if (below(6) == 0) {
    asks.pooling = below(2) == 0 ? Pooling::kMean : Pooling::kLast;
    asks.max_tokens = 0;
  }
  if (below(4) == 0) {
    asks.deadlines.first_token_ns = now_ns + below(60);
  }
  if (below(4) == 0) {
    asks.deadlines.finish_ns = now_ns + below(100);
  }
}

StepResult result_of(const StepPlan& plan, std::mt19937& random) {
  StepResult result{.id = plan.id, .logprobs = {}, .scored = {}, .pooled = {}};
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    result.sampled.push_back(static_cast<TokenId>(random() % 30));
  }
  result.logprobs.resize(plan.samples.size());
  result.scored.resize(plan.scores.size());
  for (const SequenceSlice& slice : plan.slices) {
    if (slice.pooling != Pooling::kNone) {
      result.pooled.push_back({static_cast<double>(slice.token_count)});
    }
  }
  return result;
}

// Checks the outputs of each accepted request up to its end.
void expect_whole(const RecordingSink& sink, const std::map<std::uint64_t, Request>& asked) {
  std::map<std::uint64_t, int> scored, tokens;
  for (const Output& output : sink.outputs) {
    if (const auto* part = std::get_if<PromptScored>(&output)) {
      int& so_far = scored[part->request.value];
      ASSERT_EQ(part->first_position, so_far + 1);
      so_far += static_cast<int>(part->logprobs.size());
    } else if (const auto* token = std::get_if<NewToken>(&output)) {
      ++tokens[token->request.value];
      ASSERT_EQ(token->logprobs.has_value(), asked.at(token->request.value).logprobs.answer);
    } else if (const auto* finished = std::get_if<Finished>(&output)) {
      const Request& asks = asked.at(finished->request.value);
      const int prompt = static_cast<int>(asks.prompt.size());
      if (finished->reason == FinishReason::kLength) {
        ASSERT_EQ(tokens[asks.id.value], asks.max_tokens);
        ASSERT_EQ(finished->embedding.size(), asks.pooling == Pooling::kNone ? 0U : 1U);
        if (asks.pooling == Pooling::kMean) {
          ASSERT_EQ(finished->embedding[0], 1.0F) << "a row is missing or counted twice";
        }
        ASSERT_EQ(scored[asks.id.value], asks.logprobs.prompt ? prompt - 1 : 0);
      }
    }
  }
}

TEST_P(EngineStorm, EveryAcceptedRequestEndsOnceAndNoBlockLeaks) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  EngineConfig config = EngineTest::config();
  config.max_in_flight = 1 + below(3);
  config.scheduler.kv_blocks = 12 + below(10);
  config.scheduler.prefix_caching = below(4) != 0;
  HeldExecutor executor;
  RecordingSink sink;
  Engine engine(config, executor, sink);
  TimeNs now_ns = 0;
  std::uint64_t last_id = 0;
  std::map<std::uint64_t, Request> asked;
  const auto end_oldest_step = [&] {
    const StepPlan plan = executor.plans.front();
    executor.plans.pop_front();
    StepResult result = result_of(plan, random);
    if (below(50) == 0) {
      result = {.id = plan.id, .failure = Error{ErrorCode::kInternal, "storm"}};
    }
    engine.handle({++now_ns, StepDone{std::move(result)}});
  };
  for (int i = 0; i < 3000; ++i) {
    const int dice = below(10);
    if (dice < 3) {
      Request asks = EngineTest::request(++last_id, 1 + below(40), 1 + below(12));
      const bool shares = below(2) == 0;
      for (int t = 0; shares && t < std::ssize(asks.prompt); ++t) {
        asks.prompt[static_cast<std::size_t>(t)] = t;  // a prefix that requests share
      }
      asks.stop_ids = {29};
      ask_for_more(asks, random, now_ns);
      asked.emplace(last_id, asks);
      engine.handle({++now_ns, Arrival{std::move(asks)}});
    } else if (dice == 3 && last_id > 0) {
      engine.handle(
          {++now_ns,
           Cancel{RequestId{1 + static_cast<std::uint64_t>(below(static_cast<int>(last_id)))}}});
    } else if (dice == 4) {
      engine.handle({++now_ns, Tick{}});
    } else if (!executor.plans.empty()) {
      end_oldest_step();
    }
    ASSERT_TRUE(!engine.next_deadline_ns() || *engine.next_deadline_ns() > now_ns);
    ASSERT_LE(std::ssize(executor.plans), config.max_in_flight);
  }
  while (!executor.plans.empty()) {
    end_oldest_step();
  }
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.observe().kv_blocks_used, 0);
  EXPECT_GT(engine.observe().preemptions_total, 0);
  std::map<std::uint64_t, int> ends;
  for (const Finished& finished : sink.all<Finished>()) {
    ++ends[finished.request.value];
  }
  const auto accepted = sink.all<Accepted>();
  EXPECT_EQ(ends.size(), accepted.size());
  for (const Accepted& one : accepted) {
    EXPECT_EQ(ends[one.request.value], 1) << one.request.value;
  }
  EXPECT_EQ(accepted.size() + sink.all<Refused>().size(), last_id);
  EXPECT_EQ(engine.next_deadline_ns(), std::nullopt);
  expect_whole(sink, asked);
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineStorm, testing::Range(0, 40));

}  // namespace
}  // namespace protean

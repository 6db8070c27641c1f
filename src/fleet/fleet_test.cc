#include "fleet/fleet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/overloaded.h"
#include "base/repetitions_for_test.h"

namespace protean {
namespace {

// The n-th token that a request draws, in any replica.
TokenId token_at(RequestId request, int position) {
  return static_cast<TokenId>(request.value * 1000 + static_cast<std::uint64_t>(position));
}

// Keeps plans until the test completes them.
class HeldExecutor : public Executor {
 public:
  void prepare(MorphId, const MorphStep&) override {}
  void commit(MorphId) override {}
  void abort(MorphId) override {}
  void move_blocks(std::vector<BlockMove>) override {}
  void start(StepPlan plan) override { plans.push_back(std::move(plan)); }

  StepResult complete() {
    const StepPlan plan = std::move(plans.front());
    plans.pop_front();
    StepResult result{.id = plan.id, .sampled = std::vector<TokenId>(plan.samples.size())};
    for (const SequenceSlice& slice : plan.slices) {
      if (slice.sample >= 0) {
        const auto index = static_cast<std::size_t>(slice.sample);
        result.sampled[index] = token_at(slice.request, plan.samples[index].position);
      }
    }
    return result;
  }
  std::deque<StepPlan> plans;
};

// Checks the order of each request's outputs while they come, and keeps what was said of it.
class CheckingSink : public TokenSink {
 public:
  struct Seen {
    bool accepted = false;
    bool refused = false;
    std::vector<TokenId> tokens;
    std::set<ReplicaId> replicas;
    std::optional<Finished> finished;
    std::optional<Error> error;
  };
  void emit(OutputBatch batch) override {
    for (const Output& output : batch.outputs) {
      std::visit([&](const auto& what) { on(what, batch.replica); }, output);
    }
  }
  std::map<RequestId, Seen> seen;

 private:
  void on(const Accepted& what, ReplicaId replica) {
    Seen& request = seen[what.request];
    EXPECT_FALSE(request.accepted || request.refused);
    request.accepted = true;
    request.replicas.insert(replica);
  }
  void on(const Refused& what, ReplicaId) {
    Seen& request = seen[what.request];
    EXPECT_FALSE(request.accepted || request.refused);
    request.refused = true;
    request.error = what.error;
  }
  void on(const NewToken& what, ReplicaId replica) {
    Seen& request = seen[what.request];
    EXPECT_TRUE(request.accepted && !request.finished);
    request.tokens.push_back(what.token);
    request.replicas.insert(replica);
  }
  void on(const Finished& what, ReplicaId) {
    Seen& request = seen[what.request];
    EXPECT_TRUE(request.accepted && !request.finished);
    request.finished = what;
  }
  void on(const PromptScored&, ReplicaId) {}
  void on(const WishAnswered&, ReplicaId) {}
  void on(const MigrationAnswered&, ReplicaId) {}
  void on(const GroupsAnswered&, ReplicaId) {}
};

EngineConfig engine_config() {
  return {.scheduler = {.kv_blocks = 16,
                        .block_tokens = 4,
                        .max_num_seqs = 4,
                        .max_num_batched_tokens = 16,
                        .max_model_len = 48}};
}

Request request(std::uint64_t id, int prompt, int output) {
  Request made;
  made.id = RequestId{id};
  made.max_tokens = output;
  for (int i = 0; i < prompt; ++i) {
    made.prompt.push_back(static_cast<TokenId>(id * 1000) + i);
  }
  return made;
}

// A fleet whose steps end when the test says so.
struct Scene {
  explicit Scene(RouterPolicy router, std::vector<EngineConfig> configs) {
    std::vector<Member> members;
    for (const EngineConfig& config : configs) {
      executors.push_back(std::make_unique<HeldExecutor>());
      members.push_back({config, executors.back().get()});
    }
    fleet = std::make_unique<Fleet>(Dispatch{router}, members, sink);
  }
  void send(auto what, ReplicaId replica = {}) {
    fleet->handle({now_ns, std::move(what), replica});
  }
  // Ends the oldest step of a replica after `took_ns`. Returns false if it has none.
  bool end_step(std::size_t replica, TimeNs took_ns = 10) {
    if (executors[replica]->plans.empty()) {
      return false;
    }
    now_ns += took_ns;
    send(StepDone{executors[replica]->complete()}, ReplicaId{static_cast<std::int32_t>(replica)});
    return true;
  }
  void end_all_steps() {
    for (bool more = true; more;) {
      more = false;
      for (std::size_t replica = 0; replica < executors.size(); ++replica) {
        more = end_step(replica) || more;
      }
    }
  }
  std::size_t running(int replica) const {
    return static_cast<std::size_t>(fleet->observe(ReplicaId{replica}).running);
  }

  CheckingSink sink;
  std::vector<std::unique_ptr<HeldExecutor>> executors;
  std::unique_ptr<Fleet> fleet;
  TimeNs now_ns = 1;
};

TEST(Fleet, RequestsAreSpreadAndEachReplicaReportsItsOwnSteps) {
  Scene scene(RouterPolicy::kFirstToken, {engine_config(), engine_config()});
  for (std::uint64_t id = 1; id <= 4; ++id) {
    scene.send(Arrival{request(id, 5, 3)});
  }
  scene.end_all_steps();
  EXPECT_TRUE(scene.fleet->idle());
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).accepted_total, 2);
  EXPECT_EQ(scene.fleet->observe(ReplicaId{1}).accepted_total, 2);
  for (const auto& [id, seen] : scene.sink.seen) {
    EXPECT_EQ(seen.tokens, (std::vector{token_at(id, 5), token_at(id, 6), token_at(id, 7)}));
    EXPECT_EQ(seen.replicas.size(), 1U);
  }
}

TEST(Fleet, PromptsGoWhereTheirPrefixIs) {
  Scene scene(RouterPolicy::kFirstToken, {engine_config(), engine_config(), engine_config()});
  Request first = request(1, 17, 2);
  const std::vector<TokenId> prefix = first.prompt;
  scene.send(Arrival{request(9, 5, 2)});
  scene.send(Arrival{std::move(first)});
  scene.end_all_steps();
  const ReplicaId home = *scene.sink.seen.at(RequestId{1}).replicas.begin();
  for (std::uint64_t id = 2; id < 6; ++id) {
    Request again = request(id, 1, 2);
    again.prompt = prefix;
    again.prompt.push_back(static_cast<TokenId>(id));
    scene.send(Arrival{std::move(again)});
    scene.end_all_steps();
    const CheckingSink::Seen& seen = scene.sink.seen.at(RequestId{id});
    EXPECT_EQ(*seen.replicas.begin(), home);
    EXPECT_EQ(seen.finished->usage.cached_tokens, 16);
  }
}

TEST(Fleet, WhatOneReplicaIsTooSmallForGoesToAnother) {
  EngineConfig small = engine_config();
  small.scheduler.kv_blocks = 4;
  for (const RouterPolicy router : {RouterPolicy::kFirstToken, RouterPolicy::kRoundRobin}) {
    Scene scene(router, {small, engine_config(), small});
    for (std::uint64_t id = 1; id <= 3; ++id) {
      scene.send(Arrival{request(id, 30, 4)});
      scene.end_all_steps();
      EXPECT_EQ(scene.sink.seen.at(RequestId{id}).replicas, std::set{ReplicaId{1}});
    }
    scene.send(Arrival{request(4, 40, 9)});  // 49 tokens > max_model_len
    const auto& error = scene.sink.seen.at(RequestId{4}).error;
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code, ErrorCode::kInvalidArgument);
    EXPECT_NE(error->message.find("49 tokens"), std::string::npos);
  }
}

// Replica 0 gets both long answers. When replica 1 is idle, the request that waits moves there.
TEST(Fleet, AWaitingRequestMovesToAReplicaWithRoom) {
  EngineConfig one_place = engine_config();
  one_place.scheduler.max_num_seqs = 1;
  Scene scene(RouterPolicy::kRoundRobin, {one_place, one_place});
  scene.send(Arrival{request(1, 4, 20)});
  scene.send(Arrival{request(2, 4, 2)});
  scene.send(Arrival{request(3, 4, 3)});  // waits behind request 1
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).waiting, 1);
  scene.end_step(0);
  scene.end_step(0);
  while (scene.end_step(1)) {
  }
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).released_total, 1);
  EXPECT_EQ(scene.fleet->observe(ReplicaId{1}).adopted_total, 1);
  EXPECT_FALSE(scene.sink.seen.at(RequestId{1}).finished.has_value());
  const CheckingSink::Seen& moved = scene.sink.seen.at(RequestId{3});
  EXPECT_EQ(moved.tokens.size(), 3U);
  ASSERT_TRUE(moved.finished.has_value());
  EXPECT_EQ(moved.finished->reason, FinishReason::kLength);
  EXPECT_EQ(moved.finished->usage.prompt_tokens, 4);
  EXPECT_EQ(moved.finished->times.arrived_ns, 1);
}

TEST(Fleet, ARequestDoesNotMoveWhereItWouldBeTooLate) {
  EngineConfig one_place = engine_config();
  one_place.scheduler.max_num_seqs = 1;
  one_place.step_cost = {.token_us = 1'000};
  Scene scene(RouterPolicy::kRoundRobin, {one_place, one_place});
  Request first = request(1, 17, 1);
  const std::vector<TokenId> prefix = first.prompt;
  scene.send(Arrival{std::move(first)});
  scene.send(Arrival{request(2, 1, 1)});
  scene.end_step(0, 16 * kNsPerMs);
  scene.end_step(0, kNsPerMs);
  scene.end_step(1, kNsPerMs);
  scene.send(Arrival{request(3, 1, 4)});
  scene.send(Arrival{request(4, 1, 1)});
  scene.end_step(1, kNsPerMs);
  Request asks = request(5, 1, 2);
  asks.prompt = prefix;
  asks.deadlines.first_token_ns = scene.now_ns + 12 * kNsPerMs;  // 17 ms if nothing is cached
  scene.send(Arrival{std::move(asks)});
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).waiting, 1);
  EXPECT_FALSE(scene.sink.seen.at(RequestId{5}).finished.has_value());
  scene.end_all_steps();
  EXPECT_EQ(scene.sink.seen.at(RequestId{5}).finished->reason, FinishReason::kLength);
}

TEST(Fleet, ARequestMovesToAReplicaWhoseKvIsLargeEnough) {
  EngineConfig small = engine_config();
  small.scheduler.kv_blocks = 4;
  small.scheduler.largest_kv_blocks = 16;
  Scene scene(RouterPolicy::kRoundRobin, {small, engine_config()});
  scene.send(Arrival{request(1, 30, 2)});  // 8 blocks
  scene.end_all_steps();
  ASSERT_TRUE(scene.sink.seen.at(RequestId{1}).finished.has_value());
  EXPECT_EQ(scene.fleet->observe(ReplicaId{1}).adopted_total, 1);
}

TEST(Fleet, ACancelReachesARequestThatHasMoved) {
  EngineConfig one_place = engine_config();
  one_place.scheduler.max_num_seqs = 1;
  Scene scene(RouterPolicy::kRoundRobin, {one_place, one_place});
  for (std::uint64_t id = 1; id <= 3; ++id) {
    scene.send(Arrival{request(id, 4, id == 2 ? 2 : 20)});
  }
  scene.end_step(0);
  scene.end_step(0);
  scene.end_step(1);
  scene.end_step(1);
  scene.end_step(1);  // request 3, which has moved, has a token
  ASSERT_EQ(scene.fleet->observe(ReplicaId{1}).adopted_total, 1);
  EXPECT_EQ(scene.sink.seen.at(RequestId{3}).tokens.size(), 1U);
  scene.send(Cancel{RequestId{3}});
  scene.send(Cancel{RequestId{3}});
  scene.send(Cancel{RequestId{77}});
  EXPECT_EQ(scene.sink.seen.at(RequestId{3}).finished->reason, FinishReason::kCancelled);
  EXPECT_EQ(scene.fleet->observe(ReplicaId{1}).kv_blocks_used, 0);
  scene.end_all_steps();
  EXPECT_TRUE(scene.fleet->idle());
}

TEST(Fleet, ADeadlineTravelsWithItsRequest) {
  EngineConfig one_place = engine_config();
  one_place.scheduler.max_num_seqs = 1;
  Scene scene(RouterPolicy::kRoundRobin, {one_place, one_place});
  for (std::uint64_t id = 1; id <= 3; ++id) {
    Request asks = request(id, 4, id == 2 ? 2 : 20);
    asks.deadlines.finish_ns = id == 3 ? 500 : -1;
    scene.send(Arrival{std::move(asks)});
  }
  scene.end_step(0);
  scene.end_step(0);
  while (scene.end_step(1) && scene.fleet->observe(ReplicaId{1}).adopted_total == 0) {
  }
  ASSERT_EQ(scene.fleet->observe(ReplicaId{1}).adopted_total, 1);
  EXPECT_EQ(scene.fleet->next_deadline_ns(), 500);
  scene.now_ns = 500;
  scene.send(Tick{});
  EXPECT_EQ(scene.sink.seen.at(RequestId{3}).finished->reason, FinishReason::kTimeout);
  EXPECT_FALSE(scene.fleet->next_deadline_ns().has_value());
}

// Random arrivals, lengths, deadlines and cancels at replicas of different sizes, whose steps end
// in random order: every accepted request ends exactly once, its tokens are those of one engine, in
// order, and no block stays in use.
TEST(Fleet, EveryAcceptedRequestEndsOnceWithItsTokens) {
  std::int64_t moved = 0;
  std::int64_t refused = 0;
  std::int64_t preempted = 0;
  for (int seed = 0; seed < repetitions(60); ++seed) {
    std::mt19937 random(seed);
    std::vector<EngineConfig> configs(1 + random() % 5, engine_config());
    for (EngineConfig& config : configs) {
      config.scheduler.kv_blocks = 6 + static_cast<std::int64_t>(random() % 16);
      config.scheduler.max_num_seqs = 1 + static_cast<int>(random() % 6);
      config.max_in_flight = 1 + static_cast<int>(random() % 3);
    }
    Scene scene(static_cast<RouterPolicy>(seed % 4), configs);
    std::map<RequestId, Request> asked;
    for (int event = 0; event < 1'500; ++event) {
      scene.now_ns += static_cast<TimeNs>(random() % 5);
      const auto dice = random() % 10;
      if (dice < 3) {
        Request asks = request(asked.size() + 1, 1 + static_cast<int>(random() % 40),
                               1 + static_cast<int>(random() % 12));
        asks.deadlines.first_token_ns =
            random() % 4 == 0 ? scene.now_ns + static_cast<TimeNs>(random() % 800) : -1;
        asks.priority = static_cast<int>(random() % 2);
        asked.emplace(asks.id, asks);
        scene.send(Arrival{std::move(asks)});
      } else if (dice == 3 && !asked.empty()) {
        scene.send(Cancel{RequestId{1 + random() % asked.size()}});
      } else if (dice == 4) {
        scene.send(Tick{});
      } else {
        scene.end_step(random() % configs.size());
      }
    }
    scene.end_all_steps();
    EXPECT_TRUE(scene.fleet->idle());
    std::int64_t accepted = 0;
    std::int64_t adopted = 0;
    std::int64_t released = 0;
    for (int replica = 0; replica < static_cast<int>(configs.size()); ++replica) {
      const Observation end = scene.fleet->observe(ReplicaId{replica});
      EXPECT_EQ(end.kv_blocks_used + end.kv_blocks_awaited, 0);
      accepted += end.accepted_total;
      adopted += end.adopted_total;
      released += end.released_total;
      preempted += end.preemptions_total;
    }
    EXPECT_EQ(adopted, released);
    moved += adopted;
    ASSERT_EQ(scene.sink.seen.size(), asked.size());
    for (const auto& [id, asks] : asked) {
      const CheckingSink::Seen& seen = scene.sink.seen.at(id);
      refused += seen.refused ? 1 : 0;
      accepted -= seen.accepted ? 1 : 0;
      EXPECT_EQ(seen.accepted, seen.finished.has_value());
      for (std::size_t i = 0; i < seen.tokens.size(); ++i) {
        ASSERT_EQ(seen.tokens[i], token_at(id, static_cast<int>(asks.prompt.size() + i)));
      }
      if (seen.finished && seen.finished->reason == FinishReason::kLength) {
        EXPECT_EQ(std::ssize(seen.tokens), asks.max_tokens);
        EXPECT_EQ(seen.finished->usage.output_tokens, asks.max_tokens);
      }
    }
    EXPECT_EQ(accepted, 0);
  }
  EXPECT_GT(moved, repetitions(100));
  EXPECT_GT(refused, repetitions(100));
  EXPECT_GT(preempted, repetitions(100));
}

}  // namespace
}  // namespace protean

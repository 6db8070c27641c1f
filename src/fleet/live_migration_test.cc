// Tests requests that move between replicas with their KV while they decode.

#include "fleet/live_migration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <variant>
#include <vector>

#include "base/overloaded.h"
#include "base/repetitions_for_test.h"
#include "fleet/fleet.h"

namespace protean {
namespace {

constexpr int kBlockTokens = 4;

EngineConfig config_of(std::int64_t blocks, const StepCost& cost) {
  return {.scheduler = {.kv_blocks = blocks,
                        .block_tokens = kBlockTokens,
                        .max_num_seqs = 8,
                        .max_num_batched_tokens = 64,
                        .max_model_len = 400},
          .step_cost = cost};
}

// The token that follows a sequence, for any prefix.
TokenId next_token(std::span<const TokenId> sequence) {
  std::uint64_t hash = 7;
  for (const TokenId token : sequence) {
    hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 31;
  }
  return static_cast<TokenId>(hash % 1000);
}

// An executor with memory. Its KV holds the tokens that were computed, and what it draws depends on
// all KV of the sequence: a block that is missing, too old or another one's changes the answer.
class KvExecutor : public Executor {
 public:
  struct Copy {
    CopyId id;
    const KvExecutor* from = nullptr;
    std::vector<BlockMove> blocks;
  };
  using Work = std::variant<StepPlan, Copy>;

  explicit KvExecutor(std::int64_t blocks)
      : kv_(static_cast<std::size_t>(blocks * kBlockTokens), -1) {}

  void prepare(MorphId, const MorphStep&) override {}
  void commit(MorphId) override {}
  void abort(MorphId) override {}
  void move_blocks(std::vector<BlockMove>) override {}
  void start(StepPlan plan) override { work.emplace_back(std::move(plan)); }
  bool awaits_turn() const override { return waits; }

  // Does the next work and returns its event.
  decltype(Event::what) do_next() {
    const Work next = std::move(work.front());
    work.pop_front();
    return std::visit([this](const auto& what) { return run(what); }, next);
  }

  std::deque<Work> work;
  bool waits = false;

 private:
  decltype(Event::what) run(const Copy& copy) {
    for (const BlockMove& move : copy.blocks) {
      std::copy_n(copy.from->kv_.begin() + move.from * kBlockTokens, kBlockTokens,
                  kv_.begin() + move.to * kBlockTokens);
    }
    return BlocksCopied{copy.id};
  }
  decltype(Event::what) run(const StepPlan& plan) {
    StepResult result{.id = plan.id, .sampled = std::vector<TokenId>(plan.samples.size())};
    for (const SequenceSlice& slice : plan.slices) {
      const auto cell = [&](int position) -> TokenId& {
        const auto block =
            plan.blocks[static_cast<std::size_t>(slice.block_begin + position / kBlockTokens)];
        return kv_[static_cast<std::size_t>(block * kBlockTokens + position % kBlockTokens)];
      };
      std::vector<TokenId> sequence;
      const int end = slice.first_position + slice.token_count;
      for (int i = 0; i < slice.token_count; ++i) {
        cell(slice.first_position + i) =
            plan.tokens[static_cast<std::size_t>(slice.token_begin + i)];
      }
      for (int position = 0; position < end; ++position) {
        sequence.push_back(cell(position));
      }
      if (slice.sample >= 0) {
        result.sampled[static_cast<std::size_t>(slice.sample)] = next_token(sequence);
      }
    }
    return StepDone{std::move(result)};
  }

  std::vector<TokenId> kv_;
};

class AnswerSink : public TokenSink {
 public:
  struct Seen {
    bool accepted = false;
    std::vector<TokenId> tokens;
    std::optional<Finished> finished;
  };
  void emit(OutputBatch batch) override {
    migrations = batch.migrations != nullptr ? *batch.migrations : migrations;
    for (const Output& output : batch.outputs) {
      migrations_at_answer =
          std::holds_alternative<MigrationAnswered>(output) ? migrations : migrations_at_answer;
    }
    for (const Output& output : batch.outputs) {
      std::visit(Overloaded{[&](const Accepted& what) { seen[what.request].accepted = true; },
                            [&](const NewToken& what) {
                              EXPECT_FALSE(seen[what.request].finished.has_value());
                              seen[what.request].tokens.push_back(what.token);
                            },
                            [&](const Finished& what) {
                              EXPECT_FALSE(seen[what.request].finished.has_value());
                              seen[what.request].finished = what;
                            },
                            [](const auto&) {}},
                 output);
    }
  }
  std::map<RequestId, Seen> seen;
  Migrations migrations;
  Migrations migrations_at_answer;  // what was known when an operator was answered
};

// A fleet whose executors work when the test says so.
struct MigrationScene : KvExchange {
  explicit MigrationScene(const std::vector<std::int64_t>& blocks,
                          MigratePolicy migrate = MigratePolicy::kOff, const StepCost& cost = {}) {
    std::vector<Member> members;
    for (const std::int64_t count : blocks) {
      executors.push_back(std::make_unique<KvExecutor>(count));
      members.push_back({config_of(count, cost), executors.back().get()});
    }
    fleet =
        std::make_unique<Fleet>(Dispatch{RouterPolicy::kRoundRobin, migrate}, members, sink, this);
  }
  void copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) override {
    ++copies;
    largest_copy = std::max(largest_copy, blocks.size());
    executor(to).work.emplace_back(KvExecutor::Copy{id, &executor(from), std::move(blocks)});
  }
  KvExecutor& executor(ReplicaId replica) {
    return *executors[static_cast<std::size_t>(replica.value)];
  }
  void send(decltype(Event::what) what, ReplicaId replica = {}) {
    fleet->handle({now_ns, std::move(what), replica});
  }
  void arrive(std::uint64_t id, int prompt, int output) {
    Request made;
    made.id = RequestId{id};
    made.max_tokens = output;
    for (int i = 0; i < prompt; ++i) {
      made.prompt.push_back(static_cast<TokenId>(id % 5 * 100) + i);
    }
    asked.emplace(made.id, made);
    send(Arrival{std::move(made)});
  }
  bool work(ReplicaId replica) {
    if (executor(replica).work.empty()) {
      return false;
    }
    now_ns += 10;
    send(executor(replica).do_next(), replica);
    return true;
  }
  bool work(int replica) { return work(ReplicaId{replica}); }
  void work_to_the_end() {
    for (bool more = true; more;) {
      more = false;
      for (std::int32_t replica = 0; replica < std::ssize(executors); ++replica) {
        more = work(ReplicaId{replica}) || more;
      }
    }
  }
  // Checks that a request has the answer that one replica alone gives.
  void expect_answer(RequestId id) const {
    const Request& request = asked.at(id);
    const AnswerSink::Seen& seen = sink.seen.at(id);
    std::vector<TokenId> sequence = request.prompt;
    for (const TokenId token : seen.tokens) {
      ASSERT_EQ(token, next_token(sequence)) << "request " << id.value << " at " << sequence.size();
      sequence.push_back(token);
    }
    ASSERT_TRUE(seen.finished.has_value());
    if (seen.finished->reason == FinishReason::kLength) {
      EXPECT_EQ(std::ssize(seen.tokens), request.max_tokens);
    }
  }
  std::int64_t adopted_with_kv() const {
    std::int64_t sum = 0;
    for (std::int32_t replica = 0; replica < std::ssize(executors); ++replica) {
      sum += fleet->observe(ReplicaId{replica}).adopted_with_kv_total;
    }
    return sum;
  }
  void expect_nothing_left() const {
    EXPECT_TRUE(fleet->idle());
    for (std::int32_t replica = 0; replica < std::ssize(executors); ++replica) {
      const Observation end = fleet->observe(ReplicaId{replica});
      EXPECT_EQ(end.kv_blocks_used, 0) << "replica " << replica;
      EXPECT_EQ(end.running + end.waiting, 0) << "replica " << replica;
    }
  }

  AnswerSink sink;
  std::vector<std::unique_ptr<KvExecutor>> executors;
  std::unique_ptr<Fleet> fleet;
  std::map<RequestId, Request> asked;
  TimeNs now_ns = 1;
  int copies = 0;
  std::size_t largest_copy = 0;
};

TEST(LiveMigration, ALongSequenceIsCopiedInStagesWhileItDecodes) {
  MigrationScene scene({200, 200});
  scene.arrive(1, 230, 60);
  for (int i = 0; i < 6; ++i) {
    scene.work(0);
  }
  const std::size_t before = scene.sink.seen.at(RequestId{1}).tokens.size();
  EXPECT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 1, scene.now_ns).value(), 1);
  EXPECT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 1, scene.now_ns).value(), 0)
      << "it moves already";
  int stages = 0;
  while (scene.adopted_with_kv() == 0) {
    const std::size_t tokens = scene.sink.seen.at(RequestId{1}).tokens.size();
    scene.work(0);
    if (scene.copies < 4) {
      EXPECT_EQ(scene.sink.seen.at(RequestId{1}).tokens.size(), tokens + 1) << "it goes on";
    }
    scene.work(1);
    ++stages;
  }
  EXPECT_EQ(scene.copies, 4);  // 58 blocks: 3 x 16, then the rest
  EXPECT_LE(scene.largest_copy, 17U);
  EXPECT_LE(stages, 5);
  EXPECT_GT(scene.sink.seen.at(RequestId{1}).tokens.size(), before);
  EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).kv_blocks_used, 0);
  EXPECT_FALSE(scene.work(0)) << "nothing is left to do in the first replica";
  scene.work_to_the_end();
  scene.expect_answer(RequestId{1});
  const RequestUsage& usage = scene.sink.seen.at(RequestId{1}).finished->usage;
  EXPECT_EQ(usage.preemptions, 0) << "nothing is computed twice";
  EXPECT_EQ(usage.output_tokens, 60);
  scene.expect_nothing_left();
}

// The last copy waits for the step that the other replica computes, and the request for the one
// that it has begun since.
TEST(LiveMigration, AMovingRequestMissesAtMostTwoSteps) {
  MigrationScene scene({200, 200});
  scene.arrive(1, 100, 60);
  scene.arrive(2, 10, 200);
  for (int i = 0; i < 6; ++i) {
    scene.work(i % 2);
  }
  ASSERT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 1, scene.now_ns).value(), 1);
  const auto tokens = [&](std::uint64_t id) {
    return scene.sink.seen.at(RequestId{id}).tokens.size();
  };
  std::size_t last = tokens(1);
  std::size_t others_then = tokens(2);
  while (!scene.sink.seen.at(RequestId{1}).finished) {
    scene.work(0);
    scene.work(1);
    if (tokens(1) > last) {
      EXPECT_LE(tokens(2) - others_then, 3U) << "two steps, and the one that drew the token";
      last = tokens(1);
      others_then = tokens(2);
    }
  }
  EXPECT_EQ(scene.adopted_with_kv(), 1);
  scene.work_to_the_end();
  scene.expect_answer(RequestId{1});
  scene.expect_answer(RequestId{2});
}

// The copies wait for a long step of the other replica, but the request does not.
TEST(LiveMigration, ARequestGoesOnDuringALongStepOfTheOtherReplica) {
  MigrationScene scene({200, 200}, MigratePolicy::kOff, {.fixed_us = 10'000, .token_us = 10'000});
  scene.arrive(1, 40, 60);
  scene.arrive(2, 64, 20);
  scene.work(0);
  ASSERT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 1, scene.now_ns).value(), 1);
  for (std::size_t i = 1; i < 20; ++i) {
    EXPECT_EQ(scene.sink.seen.at(RequestId{1}).tokens.size(), i);
    scene.work(0);
  }
  scene.work_to_the_end();
  EXPECT_EQ(scene.adopted_with_kv(), 1);
  scene.expect_answer(RequestId{1});
  scene.expect_answer(RequestId{2});
}

TEST(LiveMigration, AReplicaComputesShortStepsWhileARequestMovesToIt) {
  const auto first_step = [](bool moves) {
    MigrationScene scene({200, 200}, MigratePolicy::kOff, {.fixed_us = 10'000, .token_us = 10'000});
    scene.arrive(1, 40, 60);
    scene.work(0);
    if (moves) {
      EXPECT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 1, scene.now_ns).value(), 1);
    }
    scene.arrive(2, 200, 20);
    return std::get<StepPlan>(scene.executor(ReplicaId{1}).work.back()).tokens.size();
  };
  EXPECT_EQ(first_step(false), 64U);
  EXPECT_LE(first_step(true), 24U) << "a quarter of a second";
}

TEST(LiveMigration, WhatHasMovedServesLaterPrompts) {
  MigrationScene scene({200, 200});
  scene.arrive(5, 40, 30);
  scene.work(0);
  scene.work(0);
  ASSERT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 1, scene.now_ns).value(), 1);
  scene.work_to_the_end();
  ASSERT_EQ(scene.adopted_with_kv(), 1);
  scene.arrive(10, 40, 3);  // the same prompt, in turn in replica 1
  scene.work_to_the_end();
  EXPECT_EQ(scene.fleet->observe(ReplicaId{1}).prefix_hit_tokens_total, 36);
  scene.expect_answer(RequestId{5});
  scene.expect_answer(RequestId{10});
}

TEST(LiveMigration, ARequestThatEndsMeanwhileLeavesNothingBehind) {
  for (int cancelled_after = 0; cancelled_after < 8; ++cancelled_after) {
    MigrationScene scene({200, 200});
    scene.arrive(1, 200, 20);
    for (int i = 0; i < 6; ++i) {
      scene.work(0);
    }
    ASSERT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 1, scene.now_ns).value(), 1);
    for (int i = 0; i < cancelled_after; ++i) {
      scene.work(i % 2);
    }
    scene.send(Cancel{RequestId{1}});
    EXPECT_EQ(scene.sink.seen.at(RequestId{1}).finished->reason, FinishReason::kCancelled);
    scene.work_to_the_end();
    scene.expect_nothing_left();
  }
}

// Lets replica 0 of two serve eight requests that go on for long; those of replica 1 end soon.
void serve_eight_long_requests(MigrationScene& scene) {
  for (std::uint64_t id = 1; id <= 15; ++id) {
    scene.arrive(id, 20, id % 2 == 1 ? 60 : 2);
  }
  for (int i = 0; i < 12; ++i) {
    scene.work(i % 2);
  }
}

TEST(LiveMigration, AFewRequestsMoveAtATime) {
  MigrationScene scene({200, 200});
  serve_eight_long_requests(scene);
  EXPECT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 100, scene.now_ns).value(), 8);
  EXPECT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 100, scene.now_ns).value(), 0);
  std::int64_t before = 0;
  for (bool more = true; more && scene.adopted_with_kv() < 8;) {
    EXPECT_LE(scene.copies, before + 4);
    before = scene.adopted_with_kv();
    more = scene.work(0);
    more = scene.work(1) || more;
  }
  EXPECT_EQ(scene.adopted_with_kv(), 8);
  scene.work_to_the_end();
  for (const auto& [id, request] : scene.asked) {
    scene.expect_answer(id);
  }
  scene.expect_nothing_left();
}

TEST(LiveMigration, OperatorsAreToldWhichRequestsMove) {
  MigrationScene scene({200, 200});
  serve_eight_long_requests(scene);
  scene.send(WantMigration{1, ReplicaId{1}, 6}, ReplicaId{0});
  EXPECT_EQ(scene.sink.migrations, (Migrations{{ReplicaId{0}, ReplicaId{1}, 4, 2}}));
  EXPECT_EQ(scene.sink.migrations_at_answer, scene.sink.migrations);
  scene.work_to_the_end();
  EXPECT_GT(scene.adopted_with_kv(), 0);
  EXPECT_EQ(scene.sink.migrations, Migrations());
}

TEST(LiveMigration, AReplicaWithoutRoomTakesNothing) {
  MigrationScene scene({200, 20});
  scene.arrive(1, 100, 40);
  for (int i = 0; i < 4; ++i) {
    scene.work(0);
  }
  EXPECT_EQ(scene.fleet->migrate(ReplicaId{0}, ReplicaId{1}, 9, scene.now_ns).value(), 0);
  EXPECT_FALSE(scene.fleet->migrate(ReplicaId{1}, ReplicaId{1}, 1, scene.now_ns).ok());
  scene.work_to_the_end();
  EXPECT_EQ(scene.adopted_with_kv(), 0);
  scene.expect_answer(RequestId{1});
  scene.expect_nothing_left();
}

// Replica 0 has the long requests, and their KV together is more than it has.
TEST(LiveMigration, AReplicaThatRunsShortOfKvGivesRequestsAway) {
  struct Case {
    MigratePolicy policy;
    bool waits = false;  // the other replica, for turns: so would what moves there
  };
  for (const Case& c :
       {Case{MigratePolicy::kOff}, Case{MigratePolicy::kLoad}, Case{MigratePolicy::kLoad, true}}) {
    MigrationScene scene({40, 40}, c.policy);
    scene.executor(ReplicaId{1}).waits = c.waits;
    for (std::uint64_t id = 1; id <= 6; ++id) {  // every other one in replica 0
      scene.arrive(id, id % 2 == 1 ? 20 : 1, id % 2 == 1 ? 60 : 1);
    }
    scene.work_to_the_end();
    const bool moves = c.policy == MigratePolicy::kLoad && !c.waits;
    EXPECT_EQ(scene.adopted_with_kv() > 0, moves);
    EXPECT_EQ(scene.fleet->observe(ReplicaId{0}).preemptions_total == 0, moves);
    EXPECT_EQ(scene.fleet->observe(ReplicaId{1}).preemptions_total, 0);
    for (const auto& [id, request] : scene.asked) {
      scene.expect_answer(id);
    }
    scene.expect_nothing_left();
  }
}

// Random arrivals, cancels and migrations between replicas that are often full, in random order: no
// token is lost, repeated or different, and no block, place or request is left. In every third run
// the load moves requests too.
TEST(LiveMigration, AThousandMovesAtRandomMomentsChangeNoToken) {
  std::int64_t moved = 0;
  std::int64_t moved_by_load = 0;
  std::int64_t called_off = 0;
  std::int64_t preemptions = 0;
  for (int seed = 0; seed < repetitions(60); ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    const int replicas = 2 + below(3);
    std::vector<std::int64_t> blocks;
    for (int i = 0; i < replicas; ++i) {
      blocks.push_back(60 + below(100));
    }
    const bool by_load = seed % 3 == 2;
    MigrationScene scene(blocks, by_load ? MigratePolicy::kLoad : MigratePolicy::kOff);
    std::int64_t begun = 0;
    for (int event = 0; event < 2'500; ++event) {
      const int dice = below(100);
      if (dice < 4) {
        scene.arrive(scene.asked.size() + 1, 1 + below(150), 1 + below(90));
      } else if (dice < 5 && !scene.asked.empty()) {
        scene.send(Cancel{RequestId{
            1 + static_cast<std::uint64_t>(below(static_cast<int>(scene.asked.size())))}});
      } else if (dice < 12 && !by_load) {
        const ReplicaId from{below(replicas)};
        const ReplicaId to{(from.value + 1 + below(replicas - 1)) % replicas};
        begun += scene.fleet->migrate(from, to, 1 + below(3), scene.now_ns).value();
      } else {
        scene.work(below(replicas));
      }
    }
    scene.work_to_the_end();
    scene.expect_nothing_left();
    for (const auto& [id, request] : scene.asked) {
      if (scene.sink.seen[id].accepted) {
        scene.expect_answer(id);
      }
    }
    for (std::int32_t replica = 0; replica < replicas; ++replica) {
      preemptions += scene.fleet->observe(ReplicaId{replica}).preemptions_total;
    }
    if (by_load) {
      moved_by_load += scene.adopted_with_kv();
    } else {
      moved += scene.adopted_with_kv();
      called_off += begun - scene.adopted_with_kv();
    }
  }
  EXPECT_GT(moved, repetitions(1'000));
  EXPECT_GT(moved_by_load, repetitions(100));
  EXPECT_GT(called_off, repetitions(100));
  EXPECT_GT(preemptions, repetitions(100));
}

}  // namespace
}  // namespace protean

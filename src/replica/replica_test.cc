// Tests a fleet of real workers: what its replicas answer, and requests that move between them.

#include "replica/replica.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <semaphore>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "tests/checkpoints/checkpoints.h"

namespace protean {
namespace {

class Outputs : public TokenSink {
 public:
  void emit(OutputBatch batch) override { queue_.push(std::move(batch)); }
  std::vector<OutputBatch> take() { return queue_.pop_all(); }

 private:
  BoundedQueue<OutputBatch> queue_{1};
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::optional<FinishReason> reason;
};

// Allows every token. The first device that asks hangs until the end of the test.
class HangingOnce : public TokenConstraint {
 public:
  explicit HangingOnce(bool hangs) : hangs_(hangs) {}
  void allowed_after(std::span<const TokenId>, TokenMask mask) override {
    if (hangs_.exchange(false)) {
      goes_on.acquire();
    }
    std::fill(mask.begin(), mask.end(), ~std::uint64_t{0});
  }
  std::binary_semaphore goes_on{0};

 private:
  std::atomic<bool> hangs_;
};

struct ReplicasTest : testing::Test {
  ReplicasTest() {
    log::set_level(log::Level::kError);
    spec.architecture = "llama";
    spec.layers = 2;
    spec.hidden = 64;
    spec.ffn = 128;
    spec.vocab = 300;
    spec.max_context = 2048;
    spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
    write_hf_checkpoint(directory.path(), spec, {});
  }

  ReplicaOptions options_for(const GroupOptions& group) {
    const Machine machine{.topology = {.cpus = {{.cpu = 0}, {.cpu = 1}, {.cpu = 2}, {.cpu = 3}}},
                          .cores = 4,
                          .free_memory_bytes = 256 * kMiB};
    ReplicaOptions options;
    options.model = {.model = directory.path(),
                     .max_model_len = "2048",
                     .kv_cache_memory = "4MiB",
                     .group = group,
                     .max_num_seqs = 16,
                     .max_num_batched_tokens = 256};
    options.sizing = choose_sizing(options.model, spec, machine).value();
    for (CpuShare& share : options.sizing.cpus) {
      share = {};  // on any CPU
    }
    return options;
  }

  // Short and long, greedy and seeded, with penalties and logprobs, some with equal beginnings.
  Request request(std::uint64_t id) const {
    std::mt19937 random(static_cast<unsigned>(id % 50));
    Request made;
    made.id = RequestId{id};
    const std::size_t length = 1 + random() % (id % 4 == 0 ? 500 : 60);
    for (std::size_t i = 0; i < length; ++i) {
      made.prompt.push_back(static_cast<TokenId>(random() % 300));
    }
    made.max_tokens = 40 + static_cast<int>(random() % 160);
    made.sampling.temperature = id % 2 == 0 ? 0 : 1;
    made.sampling.seed = id % 50;
    made.sampling.presence_penalty = id % 5 == 0 ? 0.5F : 0;
    made.logprobs.answer = id % 3 == 0;
    made.constraint = id == 3 ? constraint : nullptr;
    return made;
  }

  ModelSpec spec;
  TemporaryDirectory directory;
  std::shared_ptr<TokenConstraint> constraint;  // of the third request
};

// A fleet with `outstanding` requests at a time until `count` have ended. on_batch is called with
// each batch.
struct Load {
  Load(const ReplicaOptions& options, const ReplicasTest& scene)
      : scene_(scene),
        checkpoint_(open_checkpoint(options.model.model).value()),
        replicas_(Replicas::start(options, *checkpoint_, inbox, outputs).value()) {}

  void run(std::uint64_t count, std::uint64_t outstanding,
           const std::function<void(const OutputBatch&)>& on_batch = {}) {
    std::uint64_t sent = 0;
    const auto send = [&] { inbox.push({steady_now_ns(), Arrival{scene_.request(++sent)}}); };
    while (sent < std::min(count, outstanding)) {
      send();
    }
    for (std::uint64_t ended = 0; ended < count;) {
      for (const OutputBatch& batch : outputs.take()) {
        for (const Output& output : batch.outputs) {
          if (const auto* token = std::get_if<NewToken>(&output)) {
            Answer& answer = answers[token->request];
            answer.tokens.push_back(token->token);
            if (token->logprobs) {
              answer.logprobs.push_back(token->logprobs->logprob);
            }
          } else if (const auto* finished = std::get_if<Finished>(&output)) {
            EXPECT_FALSE(answers[finished->request].reason.has_value());
            answers[finished->request].reason = finished->reason;
            ++ended;
            if (sent < count) {
              send();
            }
          }
          ASSERT_FALSE(std::holds_alternative<Refused>(output));
        }
        observed[batch.replica] = batch.observation;
        if (on_batch) {
          on_batch(batch);
        }
      }
    }
  }

  Inbox inbox{1024};
  Outputs outputs;
  std::map<RequestId, Answer> answers;
  std::map<ReplicaId, Observation> observed;

 private:
  const ReplicasTest& scene_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Replicas> replicas_;
};

void expect_same(const std::map<RequestId, Answer>& got, const std::map<RequestId, Answer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [id, answer] : want) {
    EXPECT_EQ(got.at(id).reason, FinishReason::kLength);
    EXPECT_EQ(got.at(id).tokens, answer.tokens) << "request " << id.value;
    EXPECT_EQ(got.at(id).logprobs, answer.logprobs) << "request " << id.value;
  }
}

TEST_F(ReplicasTest, TwoReplicasAnswerAsOne) {
  Load one(options_for({}), *this);
  one.run(40, 32);
  for (const RouterPolicy router : {RouterPolicy::kFirstToken, RouterPolicy::kRoundRobin}) {
    ReplicaOptions options = options_for({.replicas = 2});
    options.router = router;
    Load two(options, *this);
    two.run(40, 32);
    expect_same(two.answers, one.answers);
    EXPECT_GT(two.observed.at(ReplicaId{0}).accepted_total, 5);
    EXPECT_GT(two.observed.at(ReplicaId{1}).accepted_total, 5);
  }
}

// Sends random wishes for migrations while a load runs. Returns the number of requests that moved.
std::int64_t run_with_migrations(Load& load, std::uint64_t count) {
  std::mt19937 random(1);
  std::uint64_t wishes = 0;
  std::uint64_t answered = 0;
  load.run(count, 16, [&](const OutputBatch& batch) {
    for (const Output& output : batch.outputs) {
      if (const auto* answer = std::get_if<MigrationAnswered>(&output)) {
        EXPECT_TRUE(answer->requests.ok());
        ++answered;
      }
    }
    if (wishes == answered) {
      const ReplicaId from{static_cast<std::int32_t>(random() % 2)};
      const int requests = 1 + static_cast<int>(random() % 4);
      load.inbox.push(
          {steady_now_ns(), WantMigration{++wishes, ReplicaId{1 - from.value}, requests}, from});
    }
  });
  return load.observed.at(ReplicaId{0}).adopted_with_kv_total +
         load.observed.at(ReplicaId{1}).adopted_with_kv_total;
}

// PROTEAN_REQUESTS sets another number of requests.
TEST_F(ReplicasTest, AThousandLiveMigrationsUnderLoadChangeNoToken) {
  const char* wanted = std::getenv("PROTEAN_REQUESTS");
  const std::uint64_t count = wanted != nullptr ? std::stoul(wanted) : 50;
  Load one(options_for({}), *this);
  one.run(count, 16);
  Load two(options_for({.replicas = 2}), *this);
  const std::int64_t moved = run_with_migrations(two, count);
  expect_same(two.answers, one.answers);
  EXPECT_GE(moved, 1'000);
  RecordProperty("migrations", std::to_string(moved));
}

TEST_F(ReplicasTest, RequestsOfAReplicaThatHangsGoOnInTheOther) {
  constraint = std::make_shared<HangingOnce>(false);
  Load one(options_for({}), *this);
  one.run(20, 8);
  ReplicaOptions options = options_for({.replicas = 2});
  options.device_timeout_ns = 5 * kNsPerS;
  const auto hangs = std::make_shared<HangingOnce>(true);
  constraint = hangs;
  std::shared_ptr<const GroupsStatus> status;
  {
    Load two(options, *this);
    two.run(20, 8,
            [&](const OutputBatch& batch) { status = batch.groups ? batch.groups : status; });
    expect_same(two.answers, one.answers);
    hangs->goes_on.release();
  }
  ASSERT_NE(status, nullptr);
  ASSERT_EQ(status->failed.size(), 1U);
  EXPECT_EQ(status->failed.front().why, "has not answered for 5 s");
}

// With two stages, several steps are in flight.
TEST_F(ReplicasTest, RequestsMoveBetweenGroupsOfDevices) {
  for (const auto& [tensor, pipeline] : {std::pair{2, 1}, {1, 2}}) {
    Load one(options_for({.tensor = tensor, .pipeline = pipeline}), *this);
    one.run(30, 16);
    Load two(options_for({.replicas = 2, .tensor = tensor, .pipeline = pipeline}), *this);
    EXPECT_GT(run_with_migrations(two, 30), 50) << "TP " << tensor << ", PP " << pipeline;
    expect_same(two.answers, one.answers);
  }
}

}  // namespace
}  // namespace protean

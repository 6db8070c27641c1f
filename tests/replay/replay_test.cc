// Invariant 6: what happened to a real engine, with a real worker and real clients racing, can be
// replayed: the same events give the same steps.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/test_data.h"
#include "engine/engine.h"
#include "worker/cpu_worker.h"

namespace protean {
namespace {

class RecordingExecutor : public Executor {
 public:
  explicit RecordingExecutor(Executor* next) : next_(next) {}
  void prepare(MorphId, const MorphStep&) override {}
  void commit(MorphId) override {}
  void abort(MorphId) override {}
  void move_blocks(std::vector<BlockMove>) override {}
  void start(StepPlan plan) override {
    plans.push_back(plan);
    if (next_ != nullptr) {
      next_->start(std::move(plan));
    }
  }
  std::vector<StepPlan> plans;

 private:
  Executor* next_;
};

class CountingSink : public TokenSink {
 public:
  void emit(OutputBatch batch) override {
    for (const Output& output : batch.outputs) {
      const bool ended =
          std::holds_alternative<Finished>(output) || std::holds_alternative<Refused>(output);
      ended_requests += ended ? 1 : 0;
      tokens += std::holds_alternative<NewToken>(output) ? 1 : 0;
    }
    last = batch.observation;
  }
  std::atomic<int> ended_requests = 0;
  std::int64_t tokens = 0;
  Observation last;
};

void expect_same_plan(const StepPlan& a, const StepPlan& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.blocks, b.blocks);
  ASSERT_EQ(a.samples.size(), b.samples.size());
  for (std::size_t i = 0; i < a.samples.size(); ++i) {
    EXPECT_EQ(a.samples[i].position, b.samples[i].position);
    EXPECT_EQ(a.samples[i].params.seed, b.samples[i].params.seed);
    EXPECT_EQ(a.samples[i].history_begin, b.samples[i].history_begin);
    EXPECT_EQ(a.samples[i].history_count, b.samples[i].history_count);
    EXPECT_EQ(a.samples[i].banned, b.samples[i].banned);
  }
  EXPECT_EQ(a.history, b.history);
  ASSERT_EQ(a.scores.size(), b.scores.size());
  for (std::size_t i = 0; i < a.scores.size(); ++i) {
    EXPECT_EQ(a.scores[i].after, b.scores[i].after);
    EXPECT_EQ(a.scores[i].token, b.scores[i].token);
  }
  ASSERT_EQ(a.slices.size(), b.slices.size());
  for (std::size_t i = 0; i < a.slices.size(); ++i) {
    EXPECT_EQ(a.slices[i].request, b.slices[i].request);
    EXPECT_EQ(a.slices[i].first_position, b.slices[i].first_position);
    EXPECT_EQ(a.slices[i].token_begin, b.slices[i].token_begin);
    EXPECT_EQ(a.slices[i].token_count, b.slices[i].token_count);
    EXPECT_EQ(a.slices[i].block_begin, b.slices[i].block_begin);
    EXPECT_EQ(a.slices[i].block_count, b.slices[i].block_count);
    EXPECT_EQ(a.slices[i].sample, b.slices[i].sample);
    EXPECT_EQ(a.slices[i].score_count, b.slices[i].score_count);
    EXPECT_EQ(a.slices[i].pooling, b.slices[i].pooling);
  }
}

// All that requests can ask for, some of it of each.
void ask_for_more(Request& request, std::uint64_t id) {
  request.priority = static_cast<int>(id % 3);
  if (id % 4 == 0) {
    request.sampling.frequency_penalty = 0.5F;
    request.min_tokens = 5;
  }
  request.logprobs = {
      .answer = id % 5 == 1, .prompt = id % 7 == 2, .top = static_cast<int>(id % 4)};
  if (id % 11 == 3) {
    request.pooling = id % 2 == 0 ? Pooling::kMean : Pooling::kLast;
    request.max_tokens = 0;
  }
  if (id % 6 == 0) {  // the test's clock counts events
    request.deadlines = {.first_token_ns = static_cast<TimeNs>(40 * id),
                         .finish_ns = static_cast<TimeNs>(60 * id)};
  }
}

Request random_request(std::uint64_t id) {
  std::mt19937 random(static_cast<unsigned>(id));
  Request request;
  request.id = RequestId{id};
  const unsigned length = 1 + random() % 150;
  for (unsigned i = 0; i < length; ++i) {
    request.prompt.push_back(static_cast<TokenId>(i < 40 ? i + 3 : 3 + random() % 2000));
  }
  request.sampling.temperature = id % 2 == 0 ? 0.0F : 1.0F;
  request.sampling.seed = id;
  request.max_tokens = static_cast<int>(1 + random() % 60);
  request.stop_ids = {2};
  ask_for_more(request, id);
  return request;
}

constexpr std::uint64_t kRequests = 120;

// Clients on several threads, each sending requests and sometimes leaving.
std::vector<std::thread> start_clients(BoundedQueue<Event>& inbox, std::atomic<TimeNs>& clock) {
  std::vector<std::thread> clients;
  for (std::uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&inbox, &clock, client] {
      for (std::uint64_t id = 1 + client; id <= kRequests; id += 4) {
        inbox.push({++clock, Arrival{random_request(id)}});
        if (id % 5 == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          inbox.push({++clock, Cancel{RequestId{id}}});
        }
      }
    });
  }
  return clients;
}

TEST(Replay, RecordedEventsGiveTheSameSteps) {
  const auto path = test_data("models/tinystories-656k");
  PROTEAN_REQUIRE_DATA(path);
  const auto checkpoint = open_checkpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const EngineConfig config{.scheduler = {.kv_blocks = 48,
                                          .max_num_seqs = 16,
                                          .max_num_batched_tokens = 128,
                                          .max_model_len = 256}};
  BoundedQueue<Event> inbox(1024);
  std::atomic<TimeNs> clock = 0;
  WorkerOptions options;
  options.form = single_device_form((*checkpoint)->spec(), Precision::kBf16, DeviceId{0},
                                    {.blocks = config.scheduler.kv_blocks});
  options.threads = 2;
  options.max_step_tokens = config.scheduler.max_num_batched_tokens;
  options.max_positions = config.scheduler.max_model_len;
  auto worker = CpuWorker::create(options, **checkpoint, {}, [&](StepResult result) {
    inbox.push({++clock, StepDone{std::move(result)}});
  });
  ASSERT_TRUE(worker.ok()) << worker.error().message;
  RecordingExecutor real(worker->get());
  CountingSink sink;
  Engine engine(config, real, sink);

  std::vector<Event> events;
  std::vector<std::thread> clients = start_clients(inbox, clock);
  // A crowd at the door makes preemption certain, however fast steps are.
  while (events.size() < kRequests / 2) {
    for (Event& event : inbox.pop_all()) {
      events.push_back(std::move(event));
    }
  }
  for (std::size_t i = 0, crowd = events.size(); i < crowd; ++i) {
    engine.handle(events[i]);
  }
  while (sink.ended_requests < static_cast<int>(kRequests)) {
    for (Event& event : inbox.pop_all()) {
      events.push_back(event);
      engine.handle(std::move(event));
    }
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(sink.last.kv_blocks_used, 0);
  EXPECT_GT(sink.last.preemptions_total, 0);
  EXPECT_GT(sink.last.prefix_hit_tokens_total, 0);
  EXPECT_GT(sink.tokens, 500);

  RecordingExecutor replayed(nullptr);
  CountingSink replay_sink;
  Engine again(config, replayed, replay_sink);
  for (Event& event : events) {
    again.handle(std::move(event));
  }
  EXPECT_EQ(replay_sink.tokens, sink.tokens);
  ASSERT_EQ(replayed.plans.size(), real.plans.size());
  for (std::size_t i = 0; i < real.plans.size() && !HasFailure(); ++i) {
    expect_same_plan(real.plans[i], replayed.plans[i]);
  }
}

}  // namespace
}  // namespace protean

// Invariant 6: events recorded from a real engine, with a real worker and real clients racing, give
// the same decisions when they are replayed: steps, and each step of a morph.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/bounded_queue.h"
#include "base/test_data.h"
#include "control/form_path.h"
#include "control/plan_morph.h"
#include "cost/pages.h"
#include "engine/engine.h"
#include "worker/cpu_worker.h"

namespace protean {
namespace {

struct Prepared {
  MorphId id;
  MorphStep step;
  friend bool operator==(const Prepared&, const Prepared&) = default;
};
struct Committed {
  MorphId id;
  friend bool operator==(const Committed&, const Committed&) = default;
};
struct Aborted {
  MorphId id;
  friend bool operator==(const Aborted&, const Aborted&) = default;
};
using Moved = std::vector<BlockMove>;
using Decision = std::variant<StepPlan, Prepared, Committed, Aborted, Moved>;

// Records an engine's calls of its executor, and passes them on to `next` if there is one.
class RecordingExecutor : public Executor {
 public:
  explicit RecordingExecutor(Executor* next) : next_(next) {}
  void start(StepPlan plan) override {
    decisions.emplace_back(plan);
    if (next_ != nullptr) {
      next_->start(std::move(plan));
    }
  }
  void prepare(MorphId id, const MorphStep& step) override {
    decisions.emplace_back(Prepared{id, step});
    if (next_ != nullptr) {
      next_->prepare(id, step);
    }
  }
  void commit(MorphId id) override {
    decisions.emplace_back(Committed{id});
    if (next_ != nullptr) {
      next_->commit(id);
    }
  }
  void abort(MorphId id) override {
    decisions.emplace_back(Aborted{id});
    if (next_ != nullptr) {
      next_->abort(id);
    }
  }
  void move_blocks(std::vector<BlockMove> moves) override {
    decisions.emplace_back(moves);
    if (next_ != nullptr) {
      next_->move_blocks(std::move(moves));
    }
  }
  std::vector<Decision> decisions;

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
      wishes_answered += std::holds_alternative<WishAnswered>(output) ? 1 : 0;
    }
    last = batch.observation;
    form = batch.form == nullptr ? form : batch.form;
  }
  int ended_requests = 0;
  int wishes_answered = 0;
  std::int64_t tokens = 0;
  Observation last;
  std::shared_ptr<const FormStatus> form;
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

void expect_same(const Decision& a, const Decision& b) {
  ASSERT_EQ(a.index(), b.index());
  if (const auto* plan = std::get_if<StepPlan>(&a)) {
    expect_same_plan(*plan, std::get<StepPlan>(b));
    return;
  }
  std::visit(
      [&](const auto& of_a) {
        using What = std::decay_t<decltype(of_a)>;
        if constexpr (!std::is_same_v<What, StepPlan>) {
          EXPECT_TRUE(of_a == std::get<What>(b));
        }
      },
      a);
}

// Gives some requests a priority, penalties, logprobs, pooling or deadlines.
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
  if (id % 6 == 0) {  // in events, which the clock counts
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

// The clock of a recording counts events.
class Inbox {
 public:
  void push(auto what) { queue_.push({++clock_, std::move(what)}); }
  std::vector<Event> pop_all() { return queue_.pop_all(); }

 private:
  BoundedQueue<Event> queue_{1024};
  std::atomic<TimeNs> clock_ = 0;
};

// Clients on several threads, each sending requests and sometimes leaving; the last one also asks
// for forms, if `wishes` holds any.
std::vector<std::thread> start_clients(Inbox& inbox, const std::vector<FormWish>& wishes) {
  std::vector<std::thread> clients;
  for (std::uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&inbox, &wishes, client] {
      for (std::uint64_t id = 1 + client; id <= kRequests; id += 4) {
        inbox.push(Arrival{random_request(id)});
        if (id % 5 == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          inbox.push(Cancel{RequestId{id}});
        }
        if (client == 3 && id / 20 < wishes.size() && id % 20 == 0) {
          inbox.push(WantForm{id, wishes[id / 20]});
        }
      }
    });
  }
  return clients;
}

struct Replay : testing::Test {
  void SetUp() override {
    const auto path = test_data("models/tinystories-656k");
    PROTEAN_REQUIRE_DATA(path);
    auto opened = open_checkpoint(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    checkpoint = std::move(*opened);
    options.form = single_device_form(checkpoint->spec(), Precision::kBf16, DeviceId{0},
                                      {.blocks = config.scheduler.kv_blocks});
    options.devices = {{.threads = 2}};
    options.max_step_tokens = config.scheduler.max_num_batched_tokens;
    options.max_positions = config.scheduler.max_model_len;
  }

  // Lets the policy and operators change the form.
  void let_form_change() {
    MorphConfig& morph = config.morph.emplace();
    morph.mode = MorphMode::kBalanced;
    morph.policy = options_for(morph.mode);
    morph.policy.ttft_ns = 100 * kNsPerMs;
    morph.decide_every_ns = 10;
    config.step_cost = {.fixed_us = 20'000, .token_us = 100};
    FormBounds& bounds = morph.bounds;
    bounds.spec = checkpoint->spec();
    bounds.full = options.form;
    bounds.ladder = {Precision::kBf16, Precision::kW8, Precision::kW4};
    bounds.budget.page_bytes = 4096;
    bounds.budget.reserve = reserve_pages(bounds.spec, bounds.ladder, bounds.budget.page_bytes);
    bounds.budget.pages =
        form_pages(bounds.spec, bounds.full, bounds.budget.page_bytes) + bounds.budget.reserve;
    morph.start = bounds.full;
    config.scheduler.largest_kv_blocks = form_path(bounds).back().kv.blocks;
    options.pages = bounds.budget;
    options.read_component = [this](const ComponentVariant& which, std::span<std::byte> memory,
                                    const Pace& pace) -> Result<std::string> {
      const Status loaded = load_component(*checkpoint, which, memory.data(), pace);
      return loaded ? Result<std::string>(std::string()) : loaded.error();
    };
  }

  // Serves the clients on a real worker, until `quiet` holds too.
  void record(const std::vector<FormWish>& wishes, const std::function<bool()>& quiet) {
    auto worker =
        CpuWorker::create(options, *checkpoint, {},
                          [&](StepResult result) { inbox.push(StepDone{std::move(result)}); },
                          {.ready = [&](MorphReady ready) { inbox.push(std::move(ready)); },
                           .done = [&](MorphDone done) { inbox.push(done); }});
    ASSERT_TRUE(worker.ok()) << worker.error().message;
    RecordingExecutor executor(worker->get());
    Engine engine(config, executor, sink);
    std::vector<std::thread> clients = start_clients(inbox, wishes);
    // Half of the requests are there before the first step, so that preemption is certain.
    const auto receive = [&] {
      for (Event& event : inbox.pop_all()) {
        events.push_back(std::move(event));
      }
    };
    while (events.size() < kRequests / 2) {
      receive();
    }
    for (std::size_t next = 0;;) {
      for (; next < events.size(); ++next) {
        engine.handle(events[next]);
      }
      if (sink.ended_requests == static_cast<int>(kRequests) && quiet()) {
        break;
      }
      receive();
    }
    for (std::thread& client : clients) {
      client.join();
    }
    worker->reset();  // later events do not matter
    decisions = std::move(executor.decisions);
  }

  void expect_same_decisions() {
    RecordingExecutor executor(nullptr);
    CountingSink replayed;
    Engine again(config, executor, replayed);
    for (const Event& event : events) {
      again.handle(event);
    }
    EXPECT_EQ(replayed.tokens, sink.tokens);
    ASSERT_EQ(executor.decisions.size(), decisions.size());
    for (std::size_t i = 0; i < decisions.size() && !HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "decision " << i);
      expect_same(decisions[i], executor.decisions[i]);
    }
  }

  template <class What>
  std::ptrdiff_t count() const {
    return std::count_if(decisions.begin(), decisions.end(), [](const Decision& decision) {
      return std::holds_alternative<What>(decision);
    });
  }

  std::unique_ptr<Checkpoint> checkpoint;
  EngineConfig config{.scheduler = {.kv_blocks = 48,
                                    .max_num_seqs = 16,
                                    .max_num_batched_tokens = 128,
                                    .max_model_len = 256}};
  WorkerOptions options;
  Inbox inbox;
  CountingSink sink;
  std::vector<Event> events;
  std::vector<Decision> decisions;
};

TEST_F(Replay, RecordedEventsGiveTheSameSteps) {
  record({}, [] { return true; });
  EXPECT_EQ(sink.last.kv_blocks_used, 0);
  EXPECT_GT(sink.last.preemptions_total, 0);
  EXPECT_GT(sink.last.prefix_hit_tokens_total, 0);
  EXPECT_GT(sink.tokens, 500);
  expect_same_decisions();
}

TEST_F(Replay, RecordedMorphsGiveTheSameDecisions) {
  let_form_change();
  const auto all = [&](Precision precision) {
    return FormWish{.layers = std::vector<LayerPrecision>(options.form.layer_precision.size(),
                                                          {precision, precision})};
  };
  bool asked = false;
  record({{}, all(Precision::kW4), {.kv_blocks = 30}, {.release = true}, all(Precision::kBf16)},
         [&] {
           if (!std::exchange(asked, true)) {  // no request is in its way any more
             inbox.push(WantForm{kRequests + 1, all(Precision::kW8)});
             return false;
           }
           return sink.form->form == sink.form->wanted &&
                  layers_at(sink.form->form, Precision::kW8) ==
                      static_cast<double>(options.form.layer_precision.size());
         });
  EXPECT_EQ(sink.last.kv_blocks_used, 0);
  EXPECT_GT(sink.wishes_answered, 1);
  EXPECT_EQ(sink.form->failures_total, 0);
  EXPECT_GT(count<Prepared>(), 0);
  EXPECT_GT(count<Committed>(), 0);
  EXPECT_GT(sink.form->swaps_down_total, 0);
  EXPECT_GT(sink.form->kv_resizes_total, 0);
  expect_same_decisions();
}

}  // namespace
}  // namespace protean

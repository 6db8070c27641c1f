#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cost/pages.h"
#include "model/synthetic_checkpoint.h"
#include "worker/cpu_worker.h"

namespace protean {

// Collects a worker's events, and waits for them.
class WorkerEar {
 public:
  void hear(StepResult result) {
    tell([&] { steps_.push_back(std::move(result)); });
  }
  void hear(MorphReady ready) {
    tell([&] { ready_.emplace(ready.id.value, std::move(ready)); });
  }
  void hear(MorphDone done) {
    tell([&] { done_.emplace(done.id.value, done); });
  }

  StepResult next_step() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !steps_.empty(); });
    StepResult result = std::move(steps_.front());
    steps_.pop_front();
    return result;
  }
  MorphReady ready(std::uint64_t id) { return wait_for(ready_, id); }
  MorphDone done(std::uint64_t id) { return wait_for(done_, id); }
  bool heard_of(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    return ready_.contains(id) || done_.contains(id);
  }

 private:
  void tell(const std::function<void()>& note) {
    {
      const std::lock_guard lock(mutex_);
      note();
    }
    changed_.notify_all();
  }
  template <class T>
  T wait_for(const std::map<std::uint64_t, T>& heard, std::uint64_t id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return heard.contains(id); });
    return heard.at(id);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepResult> steps_;
  std::map<std::uint64_t, MorphReady> ready_;
  std::map<std::uint64_t, MorphDone> done_;
};

// A small model on a worker with pages, and the form that it has reached.
class MorphScene {
 public:
  static constexpr std::int64_t kPageBytes = 4096;

  explicit MorphScene(std::int64_t kv_blocks = 40, std::int64_t spare_pages = 64,
                      ReadComponent read = {}, int shards = 1)
      : form_(form_of(kv_blocks, shards)),
        pages_(form_pages(checkpoint_.spec(), form_, kPageBytes) + spare_pages) {
    const WorkerOptions options{.form = form_,
                                .devices = {{.threads = 2}},
                                .max_step_tokens = 100,
                                .max_positions = 256,
                                .pages = PageBudget{kPageBytes, pages_},
                                .read_component = read ? std::move(read) : reader()};
    auto worker = CpuWorker::create(
        options, checkpoint_, {}, [this](StepResult result) { ear.hear(std::move(result)); },
        {.ready = [this](MorphReady ready) { ear.hear(std::move(ready)); },
         .done = [this](MorphDone done) { ear.hear(done); }});
    EXPECT_TRUE(worker.ok()) << worker.error().message;
    worker_ = std::move(*worker);
  }

  static Form form_of(std::int64_t kv_blocks, int shards) {
    Form form = single_device_form(spec(), Precision::kBf16, DeviceId{0},
                                   {.block_tokens = 4, .blocks = kv_blocks});
    form.shards = shards;
    form.group = {whole_model(spec().layers, shards, DeviceId{0})};
    return form;
  }

  static ModelSpec spec() {
    ModelSpec spec;
    spec.architecture = "test";
    spec.layers = 3;
    spec.hidden = 64;
    spec.ffn = 96;
    spec.vocab = 70;
    spec.max_context = 256;
    spec.attention = {.heads = 4, .kv_heads = 2, .head_dim = 16};
    return spec;
  }

  ReadComponent reader() const {
    return [this](const ComponentVariant& which, std::span<std::byte> memory, const Pace& pace) {
      return read_from(checkpoint_, which, memory, pace);
    };
  }
  // Reads a component and returns no remark.
  static Result<std::string> read_from(const Checkpoint& checkpoint, const ComponentVariant& which,
                                       std::span<std::byte> memory, const Pace& pace) {
    const Status loaded = load_component(checkpoint, which, memory.data(), pace);
    return loaded ? Result<std::string>(std::string()) : loaded.error();
  }

  const SyntheticCheckpoint& checkpoint() const { return checkpoint_; }
  const Form& form() const { return form_; }
  CpuWorker& worker() { return *worker_; }
  void stop() { worker_.reset(); }

  std::uint64_t prepare(const MorphStep& step) {
    worker_->prepare(MorphId{++last_id_}, step);
    return last_id_;
  }
  MorphDone commit(std::uint64_t id, const MorphStep& step) {
    worker_->commit(MorphId{id});
    form_ = after(form_, step);
    return ear.done(id);
  }
  void apply(const MorphStep& step) {
    const std::uint64_t id = prepare(step);
    const MorphReady ready = ear.ready(id);
    ASSERT_FALSE(ready.failure) << ready.failure->message;
    const MorphDone done = commit(id, step);
    EXPECT_EQ(done.pages_free, free_pages());
  }

  // The free pages of the form reached, if no step is in preparation.
  std::int64_t free_pages() const {
    return pages_ - form_pages(checkpoint_.spec(), form_, kPageBytes);
  }
  // The free pages that the worker counts, after copies that were aborted have ended.
  std::int64_t counted_free_pages() {
    const std::uint64_t last = prepare(SwapComponent{});
    (void)ear.ready(last);
    worker_->abort(MorphId{last});
    const ResizeKv same{form_.kv.blocks};
    return commit(prepare_ready(same), same).pages_free;
  }

  WorkerEar ear;

 private:
  std::uint64_t prepare_ready(const MorphStep& step) {
    const std::uint64_t id = prepare(step);
    EXPECT_FALSE(ear.ready(id).failure);
    return id;
  }

  SyntheticCheckpoint checkpoint_{spec()};
  Form form_;
  std::int64_t pages_;
  std::uint64_t last_id_ = 0;
  std::unique_ptr<CpuWorker> worker_;
};

// A greedy answer that grows step by step, with log-probabilities, since different logits may draw
// the same tokens.
class GrowingAnswer {
 public:
  explicit GrowingAnswer(std::vector<TokenId> prompt) : fed_(std::move(prompt)) {}

  std::vector<BlockId> table;
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;

  bool needs_block() const { return std::ssize(table) * 4 < position_ + std::ssize(fed_); }

  void step(MorphScene& scene) {
    const int count = static_cast<int>(fed_.size());
    const int blocks = (position_ + count + 3) / 4;
    StepPlan plan{.id = StepId{++step_}, .tokens = fed_};
    plan.blocks.assign(table.begin(), table.begin() + blocks);
    plan.slices.push_back(
        {.first_position = position_, .token_count = count, .block_count = blocks, .sample = 0});
    plan.samples.push_back(
        {.params = {.temperature = 0.0F}, .position = position_ + count, .top_logprobs = 0});
    scene.worker().start(std::move(plan));
    const StepResult result = scene.ear.next_step();
    position_ += count;
    tokens.push_back(result.sampled.at(0));
    logprobs.push_back(result.logprobs.at(0).logprob);
    fed_ = {tokens.back()};
  }

  bool same_as(const GrowingAnswer& other) const {
    return tokens == other.tokens && logprobs == other.logprobs;
  }

 private:
  std::vector<TokenId> fed_;
  int position_ = 0;
  std::uint64_t step_ = 0;
};

// Returns an answer of so many steps in blocks 0, 1, 2, ...; calls `between` before each step.
inline GrowingAnswer answer(MorphScene& scene, int steps,
                            const std::function<void(int)>& between = {}) {
  GrowingAnswer grown({3, 1, 4, 1, 5, 9, 2, 6});
  for (int i = 0; i < steps; ++i) {
    if (between) {
      between(i);
    }
    while (grown.needs_block()) {
      grown.table.push_back(static_cast<BlockId>(grown.table.size()));
    }
    grown.step(scene);
  }
  return grown;
}

}  // namespace protean

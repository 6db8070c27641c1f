#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "ports/event.h"
#include "ports/token_sink.h"

namespace protean {

inline TimeNs steady_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// An engine that answers each request with its prompt, a token per step, then ends it with "stop".
// As with a real engine, a step ends by an event in the inbox. The constructor starts its thread.
class EchoEngine {
 public:
  EchoEngine(BoundedQueue<Event>& inbox, TokenSink& sink, Form form = {})
      : inbox_(inbox), sink_(sink), form_(std::move(form)), thread_([this] { run(); }) {}
  ~EchoEngine() {
    inbox_.close();
    thread_.join();
  }
  void refuse_with(std::optional<Error> error) {
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(error);
  }
  // Gives no request more than this many tokens.
  void stall_after(int tokens) {
    stall_after_ = tokens;
    inbox_.push({steady_ns(), StepDone{}});
  }
  // Repeats the prompt without end.
  void never_end() { endless_ = true; }
  bool wait_for_cancels(std::size_t count) { return wait_for(cancels_, count); }
  bool wait_for_arrivals(std::size_t count) { return wait_for(arrivals_, count); }

 private:
  struct Live {
    Request request;
    int emitted = 0;
  };

  bool wait_for(const std::size_t& counter, std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(2), [&] { return counter >= count; });
  }
  void run() {
    for (auto events = inbox_.pop_all(); !events.empty(); events = inbox_.pop_all()) {
      for (Event& event : events) {
        OutputBatch batch{.at_ns = steady_ns(), .replica = event.replica};
        {
          const std::lock_guard lock(mutex_);
          std::visit([&](auto& what) { on(what, batch); }, event.what);
        }
        changed_.notify_all();
        sink_.emit(std::move(batch));
      }
    }
  }
  void on(Arrival& arrival, OutputBatch& batch) {
    ++arrivals_;
    const RequestId id = arrival.request.id;
    if (refusal_) {
      batch.outputs.emplace_back(Refused{id, *refusal_});
      return;
    }
    batch.outputs.emplace_back(Accepted{id});
    live_[id] = {std::move(arrival.request)};
    keep_stepping();
  }
  void on(Cancel& cancel, OutputBatch& batch) {
    ++cancels_;
    end(cancel.request, FinishReason::kCancelled, batch);
  }
  void on(const Tick&, OutputBatch&) {}
  void on(const WantQuota&, OutputBatch&) {}
  void on(const VariantsPacked&, OutputBatch&) {}
  void on(const MorphReady&, OutputBatch&) {}
  void on(const MorphDone&, OutputBatch&) {}
  void on(const DevicesFailed&, OutputBatch&) {}
  void on(const BlocksCopied&, OutputBatch&) {}
  void on(const WantMigration& want, OutputBatch& batch) {
    batch.outputs.emplace_back(MigrationAnswered{want.wish_id, want.requests});
    batch.migrations = std::make_shared<const Migrations>(
        Migrations{{batch.replica, want.to, 1, want.requests - 1}});
  }
  // Reports one change for each group of several replicas.
  void on(const WantGroups& want, OutputBatch& batch) {
    std::vector<Regroup> changes;
    for (const std::vector<ReplicaId>& group : want.wish.groups) {
      if (group.size() > 1) {
        changes.push_back({group, want.wish.by, true, {.steps = {}, .reason = "asked for"}});
      }
    }
    batch.outputs.emplace_back(GroupsAnswered{want.wish_id, std::move(changes)});
  }
  // Reports every wish as done, unless it asks for more than 1000 blocks.
  void on(const WantForm& want, OutputBatch& batch) {
    if (want.wish.kv_blocks.value_or(0) > 1000) {
      batch.outputs.emplace_back(
          WishAnswered{want.wish_id, make_error(ErrorCode::kExhausted, "too many blocks")});
      return;
    }
    Morph morph{.steps = {}, .reason = "asked for"};
    for (std::size_t layer = 0; layer < want.wish.layers.size(); ++layer) {
      for (const Component half : kLayerHalves) {
        morph.steps.emplace_back(
            SwapComponent{static_cast<int>(layer), half, want.wish.layers[layer].of(half)});
        form_ = after(form_, morph.steps.back());
      }
    }
    if (want.wish.embeddings) {
      morph.steps.emplace_back(SwapComponent{0, Component::kEmbeddings, *want.wish.embeddings});
      form_ = after(form_, morph.steps.back());
    }
    auto status = std::make_shared<FormStatus>(FormStatus{.form = form_, .wanted = form_});
    status->pinned = want.wish.names_form();
    status->mode = want.wish.mode.value_or(MorphMode::kOff);
    status->floor = want.wish.floor.value_or(QualityFloor{});
    status->swaps_down_total = 1;
    status->output_tokens = {{precision_label(form_), 7}};
    if (!morph.steps.empty()) {
      status->history = std::make_shared<const MorphHistory>(
          1, std::make_shared<const MorphRecord>(MorphRecord{.id = 1,
                                                             .step = morph.steps.back(),
                                                             .reason = morph.reason,
                                                             .asked_ns = batch.at_ns,
                                                             .ready_ns = batch.at_ns + kNsPerS / 4,
                                                             .failure = {},
                                                             .remark = "packed anew"}));
    }
    batch.form = std::move(status);
    batch.outputs.emplace_back(WishAnswered{want.wish_id, std::move(morph)});
  }
  void on(StepDone&, OutputBatch& batch) {
    stepping_ = false;
    std::vector<std::pair<RequestId, FinishReason>> ended;
    bool moved = false;
    for (auto& [id, live] : live_) {
      const auto& prompt = live.request.prompt;
      if (live.emitted >= stall_after_) {
        continue;
      }
      moved = true;
      if (!endless_ && live.emitted == std::ssize(prompt)) {
        ended.emplace_back(id, FinishReason::kStop);
        continue;
      }
      const std::size_t at = static_cast<std::size_t>(live.emitted++) % prompt.size();
      batch.outputs.emplace_back(NewToken{id, prompt[at]});
      if (live.emitted == live.request.max_tokens) {
        ended.emplace_back(id, FinishReason::kLength);
      }
    }
    for (const auto& [id, reason] : ended) {
      end(id, reason, batch);
    }
    if (moved) {
      keep_stepping();
    }
  }
  void end(RequestId id, FinishReason reason, OutputBatch& batch) {
    const auto found = live_.find(id);
    if (found != live_.end()) {
      Finished finished{.request = id, .reason = reason};
      finished.usage.prompt_tokens = static_cast<int>(found->second.request.prompt.size());
      finished.usage.output_tokens = found->second.emitted;
      finished.usage.output_at = {{"bf16:2", found->second.emitted}};
      finished.times.finished_ns = batch.at_ns;
      batch.outputs.emplace_back(std::move(finished));
      live_.erase(found);
    }
  }
  void keep_stepping() {
    if (!live_.empty() && !std::exchange(stepping_, true)) {
      inbox_.push({steady_ns(), StepDone{}});
    }
  }

  BoundedQueue<Event>& inbox_;
  TokenSink& sink_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> refusal_;
  Form form_;
  std::map<RequestId, Live> live_;
  std::size_t arrivals_ = 0;
  std::size_t cancels_ = 0;
  bool stepping_ = false;
  std::atomic<int> stall_after_ = 1 << 30;
  std::atomic<bool> endless_ = false;
  std::thread thread_;
};

}  // namespace protean

#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/bounded_queue.h"
#include "base/check.h"
#include "cost/memory.h"
#include "cost/pages.h"
#include "model/synthetic_checkpoint.h"
#include "worker/cpu_worker.h"

// Replicas of one core each whose devices have joined, for reshard_bench.

namespace protean::reshard {

inline constexpr int kBatch = 4;  // sequences of each home
inline constexpr int kContext = 512;
inline constexpr int kBlockTokens = 16;
inline constexpr int kEachBlocks = kContext / kBlockTokens;  // of a sequence
inline constexpr std::int64_t kBlocks = 256;                 // of each home
inline constexpr std::int64_t kLive = 230;                   // of them: 90 %
inline constexpr int kChunk = 64;                            // tokens of a prompt in a step

using Clock = std::chrono::steady_clock;

inline double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Packed weights of a synthetic model in memory. All layers have the same.
class PackedWeights {
 public:
  explicit PackedWeights(const ModelSpec& spec) : checkpoint_(spec) {}
  const SyntheticCheckpoint& checkpoint() const { return checkpoint_; }
  Result<std::string> read(const ComponentVariant& which, std::span<std::byte> memory) {
    std::vector<std::byte>& packed = packed_[{which.component, which.shard}];
    if (packed.size() != memory.size()) {
      packed.resize(memory.size());
      auto region = *cpu::Region::map(std::ssize(memory));
      ComponentVariant first = which;
      first.layer = 0;
      check(load_component(checkpoint_, first, region.data()).ok(), "synthetic weights are packed");
      std::memcpy(packed.data(), region.data(), memory.size());
    }
    std::memcpy(memory.data(), packed.data(), memory.size());
    return std::string();
  }

 private:
  SyntheticCheckpoint checkpoint_;
  std::map<std::pair<Component, int>, std::vector<std::byte>> packed_;
};

// How replicas move KV, see WorkerOptions, and whether they keep all attention weights as in AMOEBA
// (Form::attention_kept).
struct Moves {
  bool early = false;
  double background_share = 1;
  bool keeps_attention = false;
};

// Joined replicas that hold whole copies and have computed their sequences' prompts.
class JoinedReplicas {
 public:
  JoinedReplicas(const ModelSpec& spec, int homes, PackedWeights& weights, Moves moves = {})
      : spec_(spec), homes_(homes) {
    const std::shared_ptr<Fabric> fabric = *Fabric::create(
        {.devices = homes, .rows = homes * kContext, .hidden = spec.hidden, .steps_in_flight = 2});
    Form form = single_device_form(spec, Precision::kBf16, DeviceId{0},
                                   {.block_tokens = kBlockTokens, .blocks = kBlocks});
    form.shards = homes;
    form.attention_kept = moves.keeps_attention ? homes : 0;
    form.group = {whole_model(spec.layers, homes, DeviceId{0})};
    const std::int64_t page_bytes = page_bytes_for(spec, homes);
    const std::int64_t spare =
        homes * kv_layer_block_bytes(spec, form.kv) * kBlocks / page_bytes + 8;
    for (int i = 0; i < homes; ++i) {
      workers_.push_back(*CpuWorker::create(
          {.form = form,
           .devices = {{.threads = 1}},
           .joining = Joining{fabric, i},
           .max_step_tokens = kContext,
           .max_positions = 2 * kContext,
           .pages = PageBudget{page_bytes, form_pages(spec, form, page_bytes) + spare},
           .read_component = [&weights](const ComponentVariant& which, std::span<std::byte> memory,
                                        const Pace&) { return weights.read(which, memory); },
           .background_share = moves.background_share,
           .moves_kv_early = moves.early},
          weights.checkpoint(), {}, [this](StepResult result) { answers_.push(std::move(result)); },
          {.ready = [this](MorphReady ready) { answers_.push(std::move(ready)); },
           .done = [this](MorphDone done) { answers_.push(done); }}));
    }
    std::vector<CpuWorker*> others;
    for (int i = 1; i < homes; ++i) {
      others.push_back(workers_[static_cast<std::size_t>(i)].get());
    }
    workers_[0]->join(others);
    const Clock::time_point begin = Clock::now();
    for (int sequence = 0; sequence < kBatch; ++sequence) {
      for (int first = 0; first < kContext - 1; first += kChunk) {
        step([&](int home) { return prompt_step(home, sequence, first); });
      }
    }
    prompts_ms_ = milliseconds_since(begin);
    step();
  }
  ~JoinedReplicas() {
    for (const auto& worker : workers_) {
      worker->close();
    }
    for (const auto& worker : workers_) {
      (void)worker->stop();  // no device hangs here, which ~CpuWorker checks
    }
  }
  JoinedReplicas(const JoinedReplicas&) = delete;
  JoinedReplicas& operator=(const JoinedReplicas&) = delete;

  // The milliseconds in which the sequences' prompts were computed.
  double prompts_ms() const { return prompts_ms_; }

  // Returns the milliseconds of a joint decode step, which begins with what was committed before.
  double step(Clock::time_point begin = Clock::now()) {
    step([](int) { return decode_step(); });
    return milliseconds_since(begin);
  }
  // The tokens that the latest step drew, those of the first home first.
  const std::vector<TokenId>& tokens() const { return tokens_; }

  // Prepares steps and returns the milliseconds that it takes.
  double prepare(const std::vector<HoldShards>& holds) {
    const Clock::time_point begin = Clock::now();
    for (const HoldShards& hold : holds) {
      workers_[0]->prepare(MorphId{++last_morph_}, hold);
      wait<MorphReady>(1);
    }
    return milliseconds_since(begin);
  }
  // Commits what was prepared before the next step and returns the time of both.
  double commit_and_step(std::size_t count) {
    const Clock::time_point begin = Clock::now();
    commit(count);
    const double took = step(begin);
    wait<MorphDone>(static_cast<int>(count));
    return took;
  }
  // Prepares steps while decode steps run and commits them between two, at most `at_once` at a
  // time, as a server does with what moves KV. Returns the milliseconds of each decode step.
  std::vector<double> change_in_pieces(std::span<const HoldShards> holds, std::size_t at_once) {
    std::vector<double> times;
    while (!holds.empty()) {
      const std::size_t count = std::min(at_once, holds.size());
      for (const HoldShards& hold : holds.first(count)) {
        workers_[0]->prepare(MorphId{++last_morph_}, hold);
      }
      int& ready = seen_[Answer(MorphReady()).index()];
      while (ready < static_cast<int>(count)) {
        times.push_back(step());
      }
      ready -= static_cast<int>(count);
      times.push_back(commit_and_step(count));
      holds = holds.subspan(count);
    }
    return times;
  }
  // Commits what was prepared while a decode step runs, and starts another one. Returns the time of
  // all. Stops the program if the two draw different tokens.
  double commit_between_steps(std::size_t count) {
    const Clock::time_point begin = Clock::now();
    results_.clear();
    start([](int) { return decode_step(); });
    commit(count);
    start([](int) { return decode_step(); });
    take_tokens(2);
    const double took = milliseconds_since(begin);
    wait<MorphDone>(static_cast<int>(count));
    const auto half = tokens_.begin() + std::ssize(tokens_) / 2;
    check(std::equal(tokens_.begin(), half, half), "a change of groups changes no token");
    tokens_.erase(half, tokens_.end());
    return took;
  }
  std::int64_t kv_bytes_moved_early() const { return workers_[0]->kv_bytes_moved_early(); }

 private:
  using Answer = std::variant<StepResult, MorphReady, MorphDone>;

  void commit(std::size_t count) {
    std::vector<std::vector<BlockId>> live(static_cast<std::size_t>(homes_));
    for (std::vector<BlockId>& blocks : live) {
      for (BlockId block = 0; block < kLive; ++block) {
        blocks.push_back(block);
      }
    }
    workers_[0]->keep(std::move(live));
    for (std::size_t i = 0; i < count; ++i) {
      workers_[0]->commit(MorphId{last_morph_ - count + i + 1});
    }
  }
  template <class PlanOf>
  void step(const PlanOf& plan_of) {
    results_.clear();
    start(plan_of);
    take_tokens(1);
  }
  template <class PlanOf>
  void start(const PlanOf& plan_of) {
    std::vector<StepPlan> plans;
    for (int home = 0; home < homes_; ++home) {
      plans.push_back(plan_of(home));
      plans.back().id = StepId{++last_step_};
    }
    workers_[0]->start(std::move(plans));
  }
  void take_tokens(int steps) {
    wait<StepResult>(steps * homes_);
    tokens_.clear();
    for (const auto& [id, result] : results_) {
      check(!result.failure, "a step is computed");
      tokens_.insert(tokens_.end(), result.sampled.begin(), result.sampled.end());
    }
  }
  StepPlan prompt_step(int home, int sequence, int first) const {
    const int count = std::min(kChunk, kContext - 1 - first);
    StepPlan plan;
    for (int i = 0; i < count; ++i) {
      plan.tokens.push_back((31 * (first + i) + 7 * sequence + 13 * home) % spec_.vocab);
    }
    for (int block = 0; block < kEachBlocks; ++block) {
      plan.blocks.push_back(sequence * kEachBlocks + block);
    }
    const int blocks = (first + count + kBlockTokens - 1) / kBlockTokens;
    plan.slices.push_back({.first_position = first, .token_count = count, .block_count = blocks});
    return plan;
  }
  static StepPlan decode_step() {
    StepPlan plan;
    for (int i = 0; i < kBatch; ++i) {
      plan.tokens.push_back(i);
      for (int block = 0; block < kEachBlocks; ++block) {
        plan.blocks.push_back(i * kEachBlocks + block);
      }
      plan.slices.push_back({.first_position = kContext - 1,
                             .token_begin = i,
                             .token_count = 1,
                             .block_begin = i * kEachBlocks,
                             .block_count = kEachBlocks,
                             .sample = i});
      plan.samples.push_back({.params = {.temperature = 0.0F}, .position = kContext});
    }
    return plan;
  }
  template <class What>
  void wait(int count) {
    int& seen = seen_[Answer(What()).index()];
    while (seen < count) {
      for (Answer& answer : answers_.pop_all()) {
        if (const auto* const ready = std::get_if<MorphReady>(&answer)) {
          check(!ready->failure, "a step is prepared");
        }
        ++seen_[answer.index()];
        if (auto* const result = std::get_if<StepResult>(&answer)) {
          results_[result->id] = std::move(*result);
        }
      }
    }
    seen -= count;
  }

  const ModelSpec spec_;
  const int homes_;
  BoundedQueue<Answer> answers_{1};
  std::map<std::size_t, int> seen_;
  std::map<StepId, StepResult> results_;
  std::vector<TokenId> tokens_;
  double prompts_ms_ = 0;
  std::uint64_t last_step_ = 0;
  std::uint64_t last_morph_ = 0;
  std::vector<std::unique_ptr<CpuWorker>> workers_;
};

}  // namespace protean::reshard

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <semaphore>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "replica/replica.h"
#include "tests/checkpoints/checkpoints.h"

// Fleets of real workers under a load whose answers are known, for tests.

namespace protean {

class FleetOutputs : public TokenSink {
 public:
  void emit(OutputBatch batch) override { queue_.push(std::move(batch)); }
  std::vector<OutputBatch> take() { return queue_.pop_all(); }

 private:
  BoundedQueue<OutputBatch> queue_{1};
};

struct FleetAnswer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::optional<FinishReason> reason;
};

// Allows every token. If it is to, the next device that asks hangs until it may go on.
class HangingOnce : public TokenConstraint {
 public:
  explicit HangingOnce(bool hangs) : hangs_(hangs) {}
  void hang() { hangs_ = true; }
  void allowed_after(std::span<const TokenId>, TokenMask mask) override {
    if (hangs_.exchange(false)) {
      entered.release();
      goes_on.acquire();
    }
    std::fill(mask.begin(), mask.end(), ~std::uint64_t{0});
  }
  std::binary_semaphore entered{0};
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

  ReplicaOptions options_for(const GroupOptions& group, bool may_morph = false) {
    const Machine machine{.topology = {.cpus = {{.cpu = 0}, {.cpu = 1}, {.cpu = 2}, {.cpu = 3}}},
                          .cores = 4,
                          .free_memory_bytes = 256 * kMiB};
    ReplicaOptions options;
    options.model = {.model = directory.path(),
                     .dtype = dtype,
                     .max_model_len = "2048",
                     .kv_cache_dtype = kv_cache_dtype,
                     .kv_cache_memory = kv_cache_memory,
                     .may_morph = may_morph,
                     .group = group,
                     .max_num_seqs = 16,
                     .max_num_batched_tokens = 256};
    options.sizing = choose_sizing(options.model, spec, machine).value();
    options.cost = group_cost(nominal_step_cost(spec), spec, kPrecisions, kAssumedTransfer);
    for (CpuShare& share : options.sizing.cpus) {
      share = {};  // on any CPU
    }
    return options;
  }

  // Halves of the MLPs then leave more memory than the KV of a layer takes, so that replicas
  // without a free page can divide layers.
  void make_layers_divisible() {
    spec.layers = 4;
    spec.ffn = 512;
    kv_cache_memory = "1536KiB";
    write_hf_checkpoint(directory.path(), spec, {});
  }

  // The same as options_for() for replicas that can become groups. Their KV leaves no page free.
  ReplicaOptions groupable(int replicas) {
    ReplicaOptions options = options_for({.replicas = replicas,
                                          .tensor = tensor,
                                          .most_tensor = most_tensor,
                                          .keeps_attention = keeps_attention,
                                          .overlaps_kv = !keeps_attention},
                                         true);
    const Sizing& sizing = options.sizing;
    MorphConfig morph{.mode = MorphMode::kOff};
    morph.start = sizing.form;
    morph.bounds = {.spec = spec,
                    .budget = sizing.budget,
                    .full = sizing.form,
                    .order = swap_targets(spec.layers, false),
                    .ladder = {highest_precision(sizing.form)}};
    options.morph = morph;
    options.variants =
        VariantStore::open({open_checkpoint(directory.path()).value(), directory.path()}, {},
                           {.directory = variants.path(), .precisions = {}, .shards = most_tensor})
            .value();
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
    made.constraint = id == 3 || all_constrained ? constraint : nullptr;
    return made;
  }

  ModelSpec spec;
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  std::string kv_cache_memory = "4MiB";
  int tensor = 1;       // of replicas that can become groups
  int most_tensor = 2;  // of these
  bool keeps_attention = false;
  TemporaryDirectory directory;
  TemporaryDirectory variants;
  std::shared_ptr<TokenConstraint> constraint;  // of the third request
  bool all_constrained = false;                 // so do all others have it
};

// A fleet with `outstanding` requests at a time until `count` have ended. on_batch is called with
// each batch.
struct FleetLoad {
  FleetLoad(const ReplicaOptions& options, const ReplicasTest& scene)
      : scene_(scene),
        checkpoint_(open_checkpoint(options.model.model).value()),
        replicas_(Replicas::start(options, {*checkpoint_}, inbox, outputs).value()) {}

  void run(std::uint64_t count, std::uint64_t outstanding,
           const std::function<void(const OutputBatch&)>& on_batch = {}) {
    count_ = count;
    const auto send = [&] { inbox.push({steady_now_ns(), Arrival{scene_.request(++sent_)}}); };
    while (sent_ < std::min(count, outstanding)) {
      send();
    }
    for (std::uint64_t ended = 0; ended < count_;) {
      for (const OutputBatch& batch : outputs.take()) {
        for (const Output& output : batch.outputs) {
          if (const auto* token = std::get_if<NewToken>(&output)) {
            FleetAnswer& answer = answers[token->request];
            answer.tokens.push_back(token->token);
            if (token->logprobs) {
              answer.logprobs.push_back(token->logprobs->logprob);
            }
          } else if (const auto* finished = std::get_if<Finished>(&output)) {
            EXPECT_FALSE(answers[finished->request].reason.has_value());
            answers[finished->request].reason = finished->reason;
            ++ended;
            if (sent_ < count_) {
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

  // No request follows those that were sent.
  void enough() { count_ = sent_; }
  std::int64_t traded_bytes() const { return replicas_->traded_bytes(); }
  // Has the model served as these options say. Requests go on meanwhile. `loaded` is called once
  // the other workers are.
  Status succeed(const ReplicaOptions& options) { return take_over(options).how; }
  Succeeded take_over(const ReplicaOptions& options, const std::function<void()>& loaded = {}) {
    auto workers = load_workers(options, {*checkpoint_});
    if (!workers.ok()) {
      return {workers.error(), {}};
    }
    if (loaded) {
      loaded();
    }
    return replicas_->succeed(*std::move(workers));
  }
  // If devices fail, requests wait for replace() from now on.
  void await_others() { replicas_->await_successor(true); }
  // Unloads the model, and loads it as these options say, where its requests go on.
  void replace(const ReplicaOptions& options) {
    std::vector<HeldRequest> held = replicas_->end();
    replicas_.reset();
    inbox.reopen();
    replicas_ = Replicas::start(options, {*checkpoint_}, inbox, outputs).value();
    await_others();
    replicas_->take_in(std::move(held));
  }

  Inbox inbox{1024};
  FleetOutputs outputs;
  std::map<RequestId, FleetAnswer> answers;
  std::map<ReplicaId, Observation> observed;

 private:
  const ReplicasTest& scene_;
  std::uint64_t count_ = 0;
  std::uint64_t sent_ = 0;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Replicas> replicas_;
};

inline void expect_same(const std::map<RequestId, FleetAnswer>& got,
                        const std::map<RequestId, FleetAnswer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [id, answer] : want) {
    EXPECT_EQ(got.at(id).reason, FinishReason::kLength);
    EXPECT_EQ(got.at(id).tokens, answer.tokens) << "request " << id.value;
    EXPECT_EQ(got.at(id).logprobs, answer.logprobs) << "request " << id.value;
  }
}

}  // namespace protean

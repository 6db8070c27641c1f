#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <semaphore>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cost/pages.h"
#include "model/synthetic_checkpoint.h"
#include "worker/cpu_worker.h"
#include "worker/morph_scene_for_test.h"
#include "worker/pool_files_for_test.h"

namespace protean {

inline constexpr int kJoinBlockTokens = 4;
inline constexpr std::int64_t kJoinPageBytes = 4096;
inline constexpr int kJoinLayers = 3;
inline constexpr int kJoinShards = 4;
inline constexpr std::int64_t kJoinBlocks = 48;  // of a replica

struct JoinCase {
  std::string name;
  Precision precision = Precision::kBf16;
  KvPrecision kv = KvPrecision::kBf16;
  int attention_kept = 0;
  bool moves_kv_early = true;
};

inline ModelSpec join_spec() {
  ModelSpec spec;
  spec.architecture = "test";
  spec.layers = kJoinLayers;
  spec.hidden = 64;
  spec.ffn = 104;
  spec.vocab = 171;
  spec.max_context = 256;
  spec.attention = {
      .heads = 8, .kv_heads = 4, .head_dim = 16, .qk_norm = true, .qk_norm_over_heads = true};
  return spec;
}

// A sequence, its tokens so far and what was drawn with which log-probability.
struct JoinTalk {
  std::uint64_t id = 0;
  int replica = 0;  // where it began, or the first one of the group to which it moved
  std::vector<TokenId> tokens;
  int computed = 0;
  std::vector<BlockId> blocks;
  std::vector<float> seen;
};

inline JoinTalk talk_of(std::uint64_t id, const ModelSpec& spec) {
  std::mt19937 random(static_cast<unsigned>(id));
  JoinTalk talk{.id = id};
  for (std::uint64_t token = 0; token < 9 + 7 * id; ++token) {
    talk.tokens.push_back(static_cast<TokenId>(random() % static_cast<std::uint32_t>(spec.vocab)));
  }
  return talk;
}

// Adds a step of a talk to a plan: a chunk of its prompt, or its last token.
inline void add(StepPlan& plan, JoinTalk& talk) {
  const int pending = static_cast<int>(talk.tokens.size()) - talk.computed;
  const int count = std::min(pending, 10);
  const int end = talk.computed + count;
  SequenceSlice slice{.request = RequestId{talk.id},
                      .first_position = talk.computed,
                      .token_begin = static_cast<int>(plan.tokens.size()),
                      .token_count = count,
                      .block_begin = static_cast<int>(plan.blocks.size()),
                      .block_count = (end + kJoinBlockTokens - 1) / kJoinBlockTokens};
  plan.tokens.insert(plan.tokens.end(), talk.tokens.begin() + talk.computed,
                     talk.tokens.begin() + end);
  plan.blocks.insert(plan.blocks.end(), talk.blocks.begin(),
                     talk.blocks.begin() + slice.block_count);
  if (count == pending) {
    slice.sample = static_cast<int>(plan.samples.size());
    plan.samples.push_back({.params = {.temperature = talk.id % 2 == 0 ? 0.9F : 0.0F, .seed = 5},
                            .position = end,
                            .top_logprobs = 1});
  }
  talk.computed = end;
  plan.slices.push_back(slice);
}

inline void take(const StepResult& result, const std::vector<JoinTalk*>& talks) {
  EXPECT_FALSE(result.failure);
  EXPECT_TRUE(result.failed.empty());
  std::size_t sample = 0;
  for (JoinTalk* const talk : talks) {
    if (talk->computed < std::ssize(talk->tokens)) {
      continue;
    }
    talk->tokens.push_back(result.sampled.at(sample));
    talk->seen.push_back(static_cast<float>(result.sampled[sample]));
    talk->seen.push_back(result.logprobs.at(sample).logprob);
    ++sample;
  }
}

// Replicas of equal forms on one fabric, each with talks in blocks of its own.
class JoinScene {
 public:
  // Each device has `spare` pages more than its replica's form needs.
  JoinScene(const JoinCase& which, int replicas, int talks, std::int64_t spare = 40)
      : case_(which), checkpoint_(join_spec()) {
    const ModelSpec spec = join_spec();
    fabric_ = *Fabric::create(
        {.devices = replicas, .rows = 40 * replicas, .hidden = spec.hidden, .steps_in_flight = 2});
    Form form = single_device_form(
        spec, which.precision, DeviceId{0},
        {.precision = which.kv, .block_tokens = kJoinBlockTokens, .blocks = kJoinBlocks});
    form.shards = kJoinShards;
    form.attention_kept = which.attention_kept;
    pages_ = form_pages(spec, Form(whole(form, 0)), kJoinPageBytes) + spare;
    for (int i = 0; i < replicas; ++i) {
      ears.push_back(std::make_unique<WorkerEar>());
      add_worker(whole(form, i), i);
      for (const int file : pool_files()) {
        if (std::find(files_.begin(), files_.end(), file) == files_.end()) {
          files_.push_back(file);
        }
      }
    }
    for (int i = 0; i < talks; ++i) {
      JoinTalk talk = talk_of(static_cast<std::uint64_t>(i), spec);
      const int of_home = i / replicas;
      talk.replica = i % replicas;
      for (BlockId block = 0; block < 15; ++block) {
        talk.blocks.push_back(static_cast<BlockId>(of_home * 15) + block);
      }
      talks_.push_back(std::move(talk));
    }
  }
  ~JoinScene() {
    for (const auto& worker : workers_) {
      worker->close();
    }
    for (const auto& worker : workers_) {
      while (!worker->stop()) {  // a device that hung may still wake up
      }
    }
  }

  cpu::GroupProgress& progress() { return fabric_->progress(); }
  CpuWorker& worker(int i) { return *workers_[static_cast<std::size_t>(i)]; }
  int replicas() const { return static_cast<int>(workers_.size()); }

  // How replicas are grouped: those that lead, with their homes; each home's talks are those whose
  // number it is among `of` homes.
  struct Group {
    int leader = 0;
    std::vector<int> members;  // replicas
    int homes = 1;
    Form form;
    std::vector<int> member_home = {};      // by member: the home that it joined with
    std::vector<std::int64_t> blocks = {};  // of each home that joined
  };

  // Runs a step of every group. The content of `between` happens while it may run.
  void step(const std::function<void()>& between = {}) {
    std::vector<std::vector<std::vector<JoinTalk*>>> running;
    for (const Group& group : groups) {
      std::vector<std::vector<JoinTalk*>> by_home(static_cast<std::size_t>(group.homes));
      std::vector<StepPlan> plans(static_cast<std::size_t>(group.homes));
      bool any = false;
      for (JoinTalk& talk : talks_) {
        const int home = home_of(group, talk);
        if (home < 0 || std::ssize(talk.tokens) >= 58) {
          continue;
        }
        auto& plan = plans[static_cast<std::size_t>(home)];
        plan.id = StepId{++last_step_};
        add(plan, talk);
        by_home[static_cast<std::size_t>(home)].push_back(&talk);
        any = true;
      }
      if (any) {
        worker(group.leader).start(std::move(plans));
      }
      running.push_back(std::move(by_home));
    }
    if (between) {
      between();
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (int home = 0; home < groups[i].homes; ++home) {
        const auto& talks = running[i][static_cast<std::size_t>(home)];
        if (!talks.empty()) {
          take(ears[static_cast<std::size_t>(home_replica(groups[i], home))]->next_step(), talks);
        }
      }
    }
  }

  // Lets a group's devices hold other shards while a step runs.
  void apply(Group& group, const HoldShards& hold) {
    CpuWorker& leader = worker(group.leader);
    WorkerEar& ear = *ears[static_cast<std::size_t>(group.leader)];
    const MorphId id{++last_id_};
    step([&] { leader.prepare(id, hold); });
    const MorphReady ready = ear.ready(id.value);
    ASSERT_FALSE(ready.failure) << ready.failure->message;
    // A step is on its way when the change is committed, and its blocks are live.
    step([&] {
      leader.keep(live_blocks(group));
      leader.commit(id);
    });
    group.form = after(group.form, hold);
    std::int64_t most = 0;
    for (int device = 0; device < static_cast<int>(group.form.group.size()); ++device) {
      most = std::max(most, pages_on(join_spec(), group.form, device, kJoinPageBytes));
    }
    EXPECT_EQ(ear.done(id.value).pages_free, pages_ - most);
  }
  // The same for several, of which the next ones are prepared while one is committed.
  void apply_ahead(Group& group, const std::vector<HoldShards>& holds, std::size_t ahead) {
    CpuWorker& leader = worker(group.leader);
    WorkerEar& ear = *ears[static_cast<std::size_t>(group.leader)];
    const std::uint64_t first = last_id_ + 1;
    for (std::size_t i = 0; i < holds.size() + ahead; ++i) {
      if (i < holds.size()) {
        leader.prepare(MorphId{++last_id_}, holds[i]);
      }
      if (i >= ahead) {
        const std::uint64_t id = first + i - ahead;
        ASSERT_FALSE(ear.ready(id).failure);
        step([&] {
          leader.keep(live_blocks(group));
          leader.commit(MorphId{id});
        });
        group.form = after(group.form, holds[i - ahead]);
      }
    }
    ear.done(last_id_);
  }
  // Prepares steps at once, and commits them without a step of the model. The content of
  // `meanwhile` happens before the end of the commits is awaited.
  void prepare(Group& group, std::span<const MorphStep> steps) {
    WorkerEar& ear = *ears[static_cast<std::size_t>(group.leader)];
    const std::uint64_t before = last_id_;
    for (const MorphStep& morph_step : steps) {
      worker(group.leader).prepare(MorphId{++last_id_}, morph_step);
    }
    for (std::uint64_t id = before + 1; id <= last_id_; ++id) {
      const MorphReady ready = ear.ready(id);
      ASSERT_FALSE(ready.failure) << ready.failure->message;
    }
  }
  void commit_prepared(Group& group, std::span<const MorphStep> steps,
                       const std::function<void()>& meanwhile = {}) {
    WorkerEar& ear = *ears[static_cast<std::size_t>(group.leader)];
    const std::uint64_t before = last_id_ - steps.size();
    worker(group.leader).keep(live_blocks(group));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      worker(group.leader).commit(MorphId{before + 1 + i});
      group.form = after(group.form, steps[i]);
    }
    if (meanwhile) {
      meanwhile();
    }
    for (std::uint64_t id = before + 1; id <= last_id_; ++id) {
      ear.done(id);
    }
  }
  std::int64_t pages() const { return pages_; }
  int file(int i) const { return files_[static_cast<std::size_t>(i)]; }
  std::int64_t mapped_pages(int i) const { return mapped_bytes(file(i)) / kJoinPageBytes; }

  void apply(Group& group, const MorphStep& morph_step) {
    CpuWorker& leader = worker(group.leader);
    WorkerEar& ear = *ears[static_cast<std::size_t>(group.leader)];
    const MorphId id{++last_id_};
    leader.prepare(id, morph_step);
    ASSERT_FALSE(ear.ready(id.value).failure);
    leader.commit(id);
    ear.done(id.value);
    group.form = after(group.form, morph_step);
  }

  // Joins groups; the first of them leads.
  Group join(const std::vector<Group>& joining) {
    Group joined = joining.front();
    joined.homes = static_cast<int>(joining.size());
    joined.member_home.assign(joined.members.size(), 0);
    joined.blocks = {joined.form.kv.blocks};
    std::vector<CpuWorker*> others;
    for (std::size_t i = 1; i < joining.size(); ++i) {
      others.push_back(&worker(joining[i].leader));
      joined.members.insert(joined.members.end(), joining[i].members.begin(),
                            joining[i].members.end());
      joined.form.group.insert(joined.form.group.end(), joining[i].form.group.begin(),
                               joining[i].form.group.end());
      joined.form.kv.blocks += joining[i].form.kv.blocks;
      joined.blocks.push_back(joining[i].form.kv.blocks);
      joined.member_home.resize(joined.members.size(), static_cast<int>(i));
    }
    std::size_t device = 0;
    for (const Group& home : joining) {
      for (std::size_t i = 0; i < home.form.group.size(); ++i) {
        joined.form.group[device++].home_blocks = home.form.kv.blocks;
      }
    }
    worker(joined.leader).join(others);
    return joined;
  }
  void unify(Group& group) {
    const HomeBlocks homes(group.blocks);
    renumber(group, [&](int home, BlockId block) { return homes.number(home, block); });
    group.homes = 1;
    worker(group.leader).unify();
  }
  // Each talk has blocks of one home only.
  void divide(Group& group, int homes) {
    const HomeBlocks apart(group.blocks);
    renumber(group, [&](int, BlockId block) { return apart.block(block).block; });
    group.homes = homes;
    worker(group.leader).divide();
  }

  // Moves a talk with its KV to another group, to blocks from `first` on.
  void move(int talk, const Group& from, const Group& to, BlockId first) {
    JoinTalk& moved = talks_[static_cast<std::size_t>(talk)];
    ASSERT_EQ(home_of(from, moved), 0);
    std::vector<BlockMove> moves;
    for (BlockId& block : moved.blocks) {
      moves.push_back({.from = block, .to = first + static_cast<BlockId>(std::ssize(moves))});
      block = moves.back().to;
    }
    std::binary_semaphore copied(0);
    worker(to.leader).copy_blocks(worker(from.leader), moves, [&] { copied.release(); });
    copied.acquire();
    moved.replica = to.members.front();
  }

  std::vector<std::vector<float>> seen() const {
    std::vector<std::vector<float>> all;
    for (const JoinTalk& talk : talks_) {
      all.push_back(talk.seen);
    }
    return all;
  }

  std::vector<Group> groups;
  std::vector<std::unique_ptr<WorkerEar>> ears;

 private:
  Form whole(Form form, int device) const {
    form.group = {whole_model(kJoinLayers, kJoinShards, DeviceId{device})};
    return form;
  }
  void add_worker(const Form& form, int i) {
    WorkerEar& ear = *ears.back();
    const WorkerOptions options{
        .form = form,
        .devices = {{.threads = i % 2 + 1}},
        .joining = Joining{fabric_, i},
        .max_step_tokens = 40,
        .max_positions = 256,
        .max_in_flight = 2,
        .pages = PageBudget{kJoinPageBytes, pages_},
        .read_component =
            [this](const ComponentVariant& which, std::span<std::byte> memory, const Pace& pace) {
              return MorphScene::read_from(checkpoint_, which, memory, pace);
            },
        .moves_kv_early = case_.moves_kv_early};
    auto worker = CpuWorker::create(
        options, checkpoint_, {}, [&ear](StepResult result) { ear.hear(std::move(result)); },
        {.ready = [&ear](MorphReady ready) { ear.hear(std::move(ready)); },
         .done = [&ear](MorphDone done) { ear.hear(done); }});
    ASSERT_TRUE(worker.ok()) << worker.error().message;
    workers_.push_back(std::move(*worker));
    groups.push_back({.leader = i, .members = {i}, .homes = 1, .form = form});
  }
  std::vector<std::vector<BlockId>> live_blocks(const Group& group) const {
    std::vector<std::vector<BlockId>> live(static_cast<std::size_t>(group.homes));
    for (const JoinTalk& talk : talks_) {
      const int home = home_of(group, talk);
      if (home >= 0) {
        auto& blocks = live[static_cast<std::size_t>(home)];
        blocks.insert(blocks.end(), talk.blocks.begin(), talk.blocks.end());
      }
    }
    return live;
  }
  // The home of a talk in a group; -1: it is in another group.
  int home_of(const Group& group, const JoinTalk& talk) const {
    const auto at = std::find(group.members.begin(), group.members.end(), talk.replica);
    return at == group.members.end() ? -1
           : group.homes == 1
               ? 0
               : group.member_home[static_cast<std::size_t>(at - group.members.begin())];
  }
  static int home_replica(const Group& group, int home) {
    if (group.homes == 1) {
      return group.leader;
    }
    const auto first = std::find(group.member_home.begin(), group.member_home.end(), home);
    return group.members[static_cast<std::size_t>(first - group.member_home.begin())];
  }
  void renumber(const Group& group, const std::function<BlockId(int, BlockId)>& number) {
    for (JoinTalk& talk : talks_) {
      const int home = home_of(group, talk);
      for (BlockId& block : talk.blocks) {
        block = home < 0 ? block : number(home, block);
      }
    }
  }

  const JoinCase case_;
  SyntheticCheckpoint checkpoint_;
  std::int64_t pages_ = 0;
  std::vector<int> files_;  // of the workers' pools
  std::shared_ptr<Fabric> fabric_;
  std::vector<std::unique_ptr<CpuWorker>> workers_;
  std::vector<JoinTalk> talks_;
  std::uint64_t last_step_ = 0;
  std::uint64_t last_id_ = 0;
};

// The components in the order in which copies are dropped.
inline std::vector<std::pair<int, Component>> components() {
  std::vector<std::pair<int, Component>> all;
  for (int layer = 0; layer < kJoinLayers; ++layer) {
    all.emplace_back(layer, Component::kMlp);
  }
  all.emplace_back(0, Component::kEmbeddings);
  for (int layer = 0; layer < kJoinLayers; ++layer) {
    all.emplace_back(layer, Component::kAttention);
  }
  return all;
}

// Applies the steps after which device `keepers[layer]` alone holds each layer, which it fetches if
// it lacks it, and returns the way back.
inline std::vector<HoldShards> keep_at(JoinScene& fleet, JoinScene::Group& group,
                                       const std::vector<int>& keepers) {
  std::vector<HoldShards> back;
  for (const auto& [layer, component] : components()) {
    HoldShards before{layer, component, {}};
    HoldShards hold{layer, component, {}};
    for (int device = 0; device < static_cast<int>(group.form.group.size()); ++device) {
      const ShardRun& run = group.form.group[static_cast<std::size_t>(device)].of(layer, component);
      const bool keeps = component == Component::kEmbeddings
                             ? device == keepers.front() || device == keepers.back()
                             : device == keepers[static_cast<std::size_t>(layer)];
      before.runs.push_back(run);
      hold.runs.push_back(keeps ? ShardRun{0, kJoinShards} : ShardRun());
    }
    fleet.apply(group, hold);
    back.insert(back.begin(), std::move(before));
  }
  return back;
}

}  // namespace protean

// Replicas whose devices join, hold other shards, become one and part again while sequences go on:
// every token has the bits that it has on one device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cost/pages.h"
#include "model/synthetic_checkpoint.h"
#include "worker/cpu_worker.h"
#include "worker/morph_scene_for_test.h"

namespace protean {
namespace {

constexpr int kBlockTokens = 4;
constexpr std::int64_t kPageBytes = 4096;
constexpr int kLayers = 3;
constexpr int kShards = 4;
constexpr std::int64_t kBlocks = 48;  // of a replica

struct JoinCase {
  std::string name;
  Precision precision = Precision::kBf16;
  KvPrecision kv = KvPrecision::kBf16;
};

ModelSpec join_spec() {
  ModelSpec spec;
  spec.architecture = "test";
  spec.layers = kLayers;
  spec.hidden = 64;
  spec.ffn = 104;
  spec.vocab = 171;
  spec.max_context = 256;
  spec.attention = {.heads = 8, .kv_heads = 4, .head_dim = 16, .qk_norm = true};
  return spec;
}

// A sequence, its tokens so far and what was drawn with which log-probability.
struct Talk {
  std::uint64_t id = 0;
  std::vector<TokenId> tokens;
  int computed = 0;
  std::vector<BlockId> blocks;
  std::vector<float> seen;
};

Talk talk_of(std::uint64_t id, const ModelSpec& spec) {
  std::mt19937 random(static_cast<unsigned>(id));
  Talk talk{.id = id};
  for (std::uint64_t token = 0; token < 9 + 7 * id; ++token) {
    talk.tokens.push_back(static_cast<TokenId>(random() % static_cast<std::uint32_t>(spec.vocab)));
  }
  return talk;
}

// Adds a step of a talk to a plan: a chunk of its prompt, or its last token.
void add(StepPlan& plan, Talk& talk) {
  const int pending = static_cast<int>(talk.tokens.size()) - talk.computed;
  const int count = std::min(pending, 10);
  const int end = talk.computed + count;
  SequenceSlice slice{.request = RequestId{talk.id},
                      .first_position = talk.computed,
                      .token_begin = static_cast<int>(plan.tokens.size()),
                      .token_count = count,
                      .block_begin = static_cast<int>(plan.blocks.size()),
                      .block_count = (end + kBlockTokens - 1) / kBlockTokens};
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

void take(const StepResult& result, const std::vector<Talk*>& talks) {
  EXPECT_FALSE(result.failure);
  EXPECT_TRUE(result.failed.empty());
  std::size_t sample = 0;
  for (Talk* const talk : talks) {
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
class Fleet {
 public:
  Fleet(const JoinCase& which, int replicas, int talks) : case_(which), checkpoint_(join_spec()) {
    const ModelSpec spec = join_spec();
    std::shared_ptr<Fabric> fabric = *Fabric::create(
        {.devices = replicas, .rows = 40 * replicas, .hidden = spec.hidden, .steps_in_flight = 2});
    Form form = single_device_form(
        spec, which.precision, DeviceId{0},
        {.precision = which.kv, .block_tokens = kBlockTokens, .blocks = kBlocks});
    form.shards = kShards;
    pages_ = form_pages(spec, Form(whole(form, 0)), kPageBytes) + 40;
    for (int i = 0; i < replicas; ++i) {
      ears.push_back(std::make_unique<WorkerEar>());
      add_worker(whole(form, i), i, replicas, fabric);
    }
    for (int i = 0; i < talks; ++i) {
      Talk talk = talk_of(static_cast<std::uint64_t>(i), spec);
      const int of_home = i / replicas;
      for (BlockId block = 0; block < 15; ++block) {
        talk.blocks.push_back(static_cast<BlockId>(of_home * 15) + block);
      }
      talks_.push_back(std::move(talk));
    }
  }
  ~Fleet() {
    for (const auto& worker : workers_) {
      worker->close();
    }
    for (const auto& worker : workers_) {
      worker->stop();
    }
  }

  CpuWorker& worker(int i) { return *workers_[static_cast<std::size_t>(i)]; }
  int replicas() const { return static_cast<int>(workers_.size()); }

  // How replicas are grouped: those that lead, with their homes; each home's talks are those whose
  // number it is among `of` homes.
  struct Group {
    int leader = 0;
    std::vector<int> members;  // replicas
    int homes = 1;
    Form form;
  };

  // Runs a step of every group. The content of `between` happens while it may run.
  void step(const std::function<void()>& between = {}) {
    std::vector<std::vector<std::vector<Talk*>>> running;
    for (const Group& group : groups) {
      std::vector<std::vector<Talk*>> by_home(static_cast<std::size_t>(group.homes));
      std::vector<StepPlan> plans(static_cast<std::size_t>(group.homes));
      bool any = false;
      for (Talk& talk : talks_) {
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
    std::vector<std::vector<BlockId>> live(static_cast<std::size_t>(group.homes));
    for (const Talk& talk : talks_) {
      const int home = home_of(group, talk);
      if (home >= 0) {
        auto& blocks = live[static_cast<std::size_t>(home)];
        blocks.insert(blocks.end(), talk.blocks.begin(), talk.blocks.end());
      }
    }
    step([&] {
      leader.keep(std::move(live));
      leader.commit(id);
    });
    group.form = after(group.form, hold);
    std::int64_t most = 0;
    for (int device = 0; device < static_cast<int>(group.form.group.size()); ++device) {
      most = std::max(most, pages_on(join_spec(), group.form, device, kPageBytes));
    }
    EXPECT_EQ(ear.done(id.value).pages_free, pages_ - most);
  }
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
    std::vector<CpuWorker*> others;
    for (std::size_t i = 1; i < joining.size(); ++i) {
      others.push_back(&worker(joining[i].leader));
      joined.members.insert(joined.members.end(), joining[i].members.begin(),
                            joining[i].members.end());
      joined.form.group.insert(joined.form.group.end(), joining[i].form.group.begin(),
                               joining[i].form.group.end());
      joined.form.kv.blocks += joining[i].form.kv.blocks;
    }
    worker(joined.leader).join(others);
    return joined;
  }
  void unify(Group& group) {
    renumber(group, [&](int home, BlockId block) { return block * group.homes + home; });
    group.homes = 1;
    worker(group.leader).unify();
  }
  // Each talk has blocks of one home only.
  void divide(Group& group, int homes) {
    renumber(group, [&](int, BlockId block) { return block / homes; });
    group.homes = homes;
    worker(group.leader).divide();
  }

  std::vector<std::vector<float>> seen() const {
    std::vector<std::vector<float>> all;
    for (const Talk& talk : talks_) {
      all.push_back(talk.seen);
    }
    return all;
  }

  std::vector<Group> groups;
  std::vector<std::unique_ptr<WorkerEar>> ears;

 private:
  Form whole(Form form, int device) const {
    form.group = {whole_model(kLayers, kShards, DeviceId{device})};
    return form;
  }
  void add_worker(const Form& form, int i, int replicas, const std::shared_ptr<Fabric>& fabric) {
    WorkerEar& ear = *ears.back();
    const WorkerOptions options{
        .form = form,
        .devices = {{.threads = i % 2 + 1}},
        .joining = Joining{fabric, i, replicas},
        .max_step_tokens = 40,
        .max_positions = 256,
        .max_in_flight = 2,
        .pages = PageBudget{kPageBytes, pages_},
        .read_component = [this](const ComponentVariant& which, std::span<std::byte> memory,
                                 const Pace& pace) {
          return MorphScene::read_from(checkpoint_, which, memory, pace);
        }};
    auto worker = CpuWorker::create(
        options, checkpoint_, {}, [&ear](StepResult result) { ear.hear(std::move(result)); },
        {.ready = [&ear](MorphReady ready) { ear.hear(std::move(ready)); },
         .done = [&ear](MorphDone done) { ear.hear(done); }});
    ASSERT_TRUE(worker.ok()) << worker.error().message;
    workers_.push_back(std::move(*worker));
    groups.push_back({.leader = i, .members = {i}, .homes = 1, .form = form});
  }
  // The home of a talk in a group; -1: it is in another group.
  int home_of(const Group& group, const Talk& talk) const {
    const int replica = static_cast<int>(talk.id) % replicas();
    const auto at = std::find(group.members.begin(), group.members.end(), replica);
    return at == group.members.end() ? -1
                                     : static_cast<int>((at - group.members.begin()) * group.homes /
                                                        std::ssize(group.members));
  }
  static int home_replica(const Group& group, int home) {
    return group.members[static_cast<std::size_t>(home) * group.members.size() /
                         static_cast<std::size_t>(group.homes)];
  }
  void renumber(const Group& group, const std::function<BlockId(int, BlockId)>& number) {
    for (Talk& talk : talks_) {
      const int home = home_of(group, talk);
      for (BlockId& block : talk.blocks) {
        block = home < 0 ? block : number(home, block);
      }
    }
  }

  const JoinCase case_;
  SyntheticCheckpoint checkpoint_;
  std::int64_t pages_ = 0;
  std::vector<std::unique_ptr<CpuWorker>> workers_;
  std::vector<Talk> talks_;
  std::uint64_t last_step_ = 0;
  std::uint64_t last_id_ = 0;
};

// The components in the order in which copies are dropped.
std::vector<std::pair<int, Component>> components() {
  std::vector<std::pair<int, Component>> all;
  for (int layer = 0; layer < kLayers; ++layer) {
    all.emplace_back(layer, Component::kMlp);
  }
  all.emplace_back(0, Component::kEmbeddings);
  for (int layer = 0; layer < kLayers; ++layer) {
    all.emplace_back(layer, Component::kAttention);
  }
  return all;
}

// What each device holds once the homes' copies of a component are one: divided by shards, or kept
// by the home that the layer falls to.
std::vector<ShardRun> one_copy(const Form& form, int homes, int layer, Component component,
                               bool by_layers) {
  std::vector<ShardRun> runs;
  const int each = static_cast<int>(form.group.size()) / homes;
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    const int home = device / each;
    ShardRun run = form.group[static_cast<std::size_t>(device)].of(layer, component);
    if (by_layers) {
      const int keeper = layer * homes / kLayers;
      const bool keeps =
          component == Component::kEmbeddings ? home == 0 || home == homes - 1 : home == keeper;
      runs.push_back(keeps ? run : ShardRun());
    } else {
      run.count /= homes;
      run.first += home * run.count;
      runs.push_back(run);
    }
  }
  return runs;
}

// Drops the copies of everything in the order given, and remembers what there was.
std::vector<HoldShards> drop(Fleet& fleet, Fleet::Group& group, bool by_layers) {
  std::vector<HoldShards> back;
  for (const auto& [layer, component] : components()) {
    HoldShards before{layer, component, {}};
    for (const Holding& holding : group.form.group) {
      before.runs.push_back(holding.of(layer, component));
    }
    back.push_back(std::move(before));
    fleet.apply(group, HoldShards{layer, component,
                                  one_copy(group.form, group.homes, layer, component, by_layers)});
  }
  std::reverse(back.begin(), back.end());
  return back;
}

std::vector<std::vector<float>> alone(const JoinCase& which, int replicas, int talks) {
  Fleet fleet(which, replicas, talks);
  for (int i = 0; i < 60; ++i) {
    fleet.step();
  }
  return fleet.seen();
}

class Join : public testing::TestWithParam<std::tuple<JoinCase, int, bool>> {};

// All replicas at once, by shards or by layers, and back.
TEST_P(Join, HasTheBitsOfReplicasThatStandAlone) {
  const auto& [which, replicas, by_layers] = GetParam();
  Fleet fleet(which, replicas, 2 * replicas);
  fleet.step();
  Fleet::Group group = fleet.join(fleet.groups);
  const std::vector<Fleet::Group> apart = std::exchange(fleet.groups, {group});
  Fleet::Group& wide = fleet.groups.front();
  fleet.step();
  std::vector<HoldShards> back = drop(fleet, wide, by_layers);
  fleet.unify(wide);
  fleet.step();
  fleet.apply(wide, ResizeKv{wide.form.kv.blocks + 7});
  fleet.step();
  fleet.apply(wide, ResizeKv{wide.form.kv.blocks - 7});
  fleet.apply(wide, SwapComponent{1, Component::kMlp, Precision::kW8});
  fleet.apply(wide, SwapComponent{1, Component::kMlp, which.precision});
  fleet.divide(wide, replicas);
  fleet.step();
  for (const HoldShards& hold : back) {
    fleet.apply(wide, hold);
  }
  fleet.worker(0).part();
  fleet.groups = apart;
  for (int i = 0; i < 60; ++i) {
    fleet.step();
  }
  EXPECT_EQ(fleet.seen(), alone(which, replicas, 2 * replicas));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Join,
    testing::Combine(testing::Values(JoinCase{"bf16"},
                                     JoinCase{"bf16_int8kv", Precision::kBf16, KvPrecision::kInt8},
                                     JoinCase{"w8", Precision::kW8},
                                     JoinCase{"w8a8_int8kv", Precision::kW8A8, KvPrecision::kInt8}),
                     testing::Values(2, 4), testing::Bool()),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param)) +
             (std::get<2>(info.param) ? "_layers" : "_shards");
    });

void take_back(Fleet& fleet, Fleet::Group& group, int homes, const std::vector<HoldShards>& back) {
  fleet.divide(group, homes);
  for (const HoldShards& hold : back) {
    fleet.apply(group, hold);
  }
}

// 1, 2, 4, 2, 1 devices: pairs become wide replicas, which then join themselves.
TEST(JoinOfWideReplicas, HasTheBitsOfReplicasThatStandAlone) {
  const JoinCase which{"bf16"};
  Fleet fleet(which, 4, 8);
  const std::vector<Fleet::Group> narrow = fleet.groups;
  fleet.step();
  fleet.groups = {fleet.join({narrow[0], narrow[1]}), fleet.join({narrow[2], narrow[3]})};
  std::vector<std::vector<HoldShards>> back;
  for (Fleet::Group& group : fleet.groups) {
    back.push_back(drop(fleet, group, false));
    fleet.unify(group);
  }
  const std::vector<Fleet::Group> pairs = fleet.groups;
  fleet.groups = {fleet.join(pairs)};
  const std::vector<HoldShards> back_to_pairs = drop(fleet, fleet.groups[0], false);
  fleet.unify(fleet.groups[0]);
  fleet.step();
  take_back(fleet, fleet.groups[0], 2, back_to_pairs);
  fleet.worker(0).part();
  fleet.groups = pairs;
  for (std::size_t i = 0; i < 2; ++i) {
    take_back(fleet, fleet.groups[i], 2, back[i]);
    fleet.worker(fleet.groups[i].leader).part();
  }
  fleet.groups = narrow;
  for (int i = 0; i < 60; ++i) {
    fleet.step();
  }
  EXPECT_EQ(fleet.seen(), alone(which, 4, 8));
}

// Goes forth and back by random steps of random kinds, and turns round at random places.
TEST(JoinAtRandom, HasTheBitsOfReplicasThatStandAlone) {
  const JoinCase which{"w8", Precision::kW8};
  const auto expected = alone(which, 2, 6);
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    Fleet fleet(which, 2, 6);
    const std::vector<Fleet::Group> apart = fleet.groups;
    for (int round = 0; round < 4; ++round) {
      fleet.groups = {fleet.join(apart)};
      Fleet::Group& group = fleet.groups.front();
      const Form whole = group.form;
      std::vector<std::pair<int, Component>> order = components();
      std::shuffle(order.begin(), order.end(), random);
      order.resize(1 + random() % order.size());
      for (const auto& [layer, component] : order) {
        const bool by_layers = random() % 2 == 0;
        fleet.apply(group, HoldShards{layer, component,
                                      one_copy(group.form, 2, layer, component, by_layers)});
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const auto& [layer, component] : order) {
        HoldShards back{layer, component, {}};
        for (const Holding& holding : whole.group) {
          back.runs.push_back(holding.of(layer, component));
        }
        fleet.apply(group, back);
      }
      fleet.worker(0).part();
      fleet.groups = apart;
      fleet.step();
    }
    for (int i = 0; i < 60; ++i) {
      fleet.step();
    }
    EXPECT_EQ(fleet.seen(), expected) << "seed " << seed;
  }
}

// A step that fails or is aborted leaves what devices hold, and gives back all pages.
TEST(JoinThatFails, LeavesTheFormThatItHad) {
  const JoinCase which{"bf16"};
  Fleet fleet(which, 2, 4);
  const std::vector<Fleet::Group> apart = fleet.groups;
  const HoldShards alone_in_group{0, Component::kMlp, {{0, 2}, {2, 2}}};
  fleet.worker(0).prepare(MorphId{1000}, alone_in_group);
  EXPECT_TRUE(fleet.ears[0]->ready(1000).failure) << "the replicas are not joined";
  fleet.groups = {fleet.join(apart)};
  Fleet::Group& group = fleet.groups.front();
  const std::vector<HoldShards> back = drop(fleet, group, true);
  for (int i = 0; i < 5; ++i) {
    const auto id = static_cast<std::uint64_t>(2000 + i);
    fleet.worker(0).prepare(MorphId{id}, back.front());
    if (i % 2 == 0) {
      fleet.ears[0]->ready(id);
    }
    fleet.worker(0).abort(MorphId{id});
  }
  for (const HoldShards& hold : back) {
    fleet.apply(group, hold);  // counts the free pages of all devices
  }
  fleet.worker(0).part();
  fleet.groups = apart;
  for (int i = 0; i < 60; ++i) {
    fleet.step();
  }
  EXPECT_EQ(fleet.seen(), alone(which, 2, 4));
}

}  // namespace
}  // namespace protean

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/overloaded.h"
#include "control/plan_regroup.h"
#include "cost/pages.h"
#include "fleet/fleet.h"

// Devices for tests of groups. They work only when the test lets them, count their pages, and hold
// for each layer and block the tokens whose KV it has.

namespace protean {

constexpr int kGroupBlockTokens = 4;
constexpr int kGroupLayers = 3;

// The token that follows a sequence, for any prefix.
inline TokenId token_following(std::span<const TokenId> sequence) {
  std::uint64_t hash = 7;
  for (const TokenId token : sequence) {
    hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 31;
  }
  return static_cast<TokenId>(hash % 1000);
}

inline ModelSpec group_spec() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = kGroupLayers;
  spec.hidden = 64;
  spec.ffn = 128;
  spec.vocab = 128;
  spec.attention = {.heads = 4, .kv_heads = 4, .head_dim = 16};
  return spec;
}

inline Form group_form(std::int64_t blocks, int shards = 4) {
  Form form = single_device_form(
      group_spec(), Precision::kF32, DeviceId{0},
      {.precision = KvPrecision::kF32, .block_tokens = kGroupBlockTokens, .blocks = blocks});
  form.shards = shards;
  form.group = {whole_model(kGroupLayers, shards, DeviceId{0})};
  return form;
}

inline EngineConfig group_engine(const Form& form, const PageBudget& budget, bool morphs) {
  const int devices = static_cast<int>(form.group.size());
  EngineConfig config{.scheduler = {.kv_blocks = form.kv.blocks,
                                    .block_tokens = kGroupBlockTokens,
                                    .max_num_seqs = 6 * devices,
                                    .max_num_batched_tokens = 32,
                                    .max_model_len = 2000}};
  if (morphs) {
    MorphConfig morph{.mode = MorphMode::kOff, .start = form};
    morph.bounds = {.spec = group_spec(), .budget = budget, .full = form};
    morph.bounds.ladder = {Precision::kF32};
    config.scheduler.largest_kv_blocks =
        std::max(form.kv.blocks, kv_blocks_beside(morph.bounds, form));
    config.morph = morph;
  }
  return config;
}

// Tokens by layer, block and place in the block.
class TokenKv {
 public:
  explicit TokenKv(std::int64_t blocks = 0) { resize(blocks); }
  void resize(std::int64_t blocks) {
    for (auto& layer : layers_) {
      layer.resize(static_cast<std::size_t>(blocks), std::vector<TokenId>(kGroupBlockTokens, -1));
    }
  }
  std::int64_t blocks() const { return std::ssize(layers_[0]); }
  std::vector<TokenId>& at(int layer, std::int64_t block) {
    return layers_[static_cast<std::size_t>(layer)].at(static_cast<std::size_t>(block));
  }
  void move(const BlockMove& move) {
    for (int layer = 0; layer < kGroupLayers; ++layer) {
      at(layer, move.to) = at(layer, move.from);
    }
  }
  // Loses a layer's blocks that are not named.
  void keep_only(int layer, const std::vector<BlockId>& live) {
    const std::set<BlockId> kept(live.begin(), live.end());
    for (BlockId block = 0; block < blocks(); ++block) {
      if (!kept.contains(block)) {
        at(layer, block).assign(kGroupBlockTokens, -1);
      }
    }
  }
  // Computes a plan, whose draws depend on all KV of their sequences in every layer.
  StepResult compute(const StepPlan& plan) {
    StepResult result{.id = plan.id, .sampled = std::vector<TokenId>(plan.samples.size())};
    for (const SequenceSlice& slice : plan.slices) {
      std::vector<TokenId> first;
      for (int layer = 0; layer < kGroupLayers; ++layer) {
        const auto cell = [&](int position) -> TokenId& {
          const auto index =
              static_cast<std::size_t>(slice.block_begin + position / kGroupBlockTokens);
          return at(layer,
                    plan.blocks[index])[static_cast<std::size_t>(position % kGroupBlockTokens)];
        };
        for (int i = 0; i < slice.token_count; ++i) {
          cell(slice.first_position + i) =
              plan.tokens[static_cast<std::size_t>(slice.token_begin + i)];
        }
        std::vector<TokenId> read;
        for (int position = 0; position < slice.first_position + slice.token_count; ++position) {
          read.push_back(cell(position));
        }
        if (layer == 0) {
          first = read;
        }
        EXPECT_EQ(read, first) << "request " << slice.request.value << " layer " << layer;
      }
      if (slice.sample >= 0) {
        result.sampled[static_cast<std::size_t>(slice.sample)] = token_following(first);
      }
    }
    return result;
  }

 private:
  std::array<std::vector<std::vector<TokenId>>, kGroupLayers> layers_;
};

// The devices of all replicas. A replica's queue holds what it or its group does next.
class GroupedDevices : public DeviceGroups {
 public:
  struct Commit {
    MorphId id;
  };
  struct Joint {
    std::vector<StepPlan> plans;
  };
  struct Keep {
    std::vector<std::vector<BlockId>> live;
  };
  enum class Turn { kJoin, kUnify, kDivide, kPart };
  struct Change {
    Turn turn = Turn::kJoin;
    std::vector<ReplicaId> replicas;
  };
  using Work = std::variant<StepPlan, Joint, Commit, Keep, std::vector<BlockMove>, Change>;

  class ReplicaExecutor : public Executor {
   public:
    ReplicaExecutor(GroupedDevices& devices, ReplicaId replica)
        : devices_(devices), replica_(replica) {}
    void start(StepPlan plan) override { push(std::move(plan)); }
    void prepare(MorphId id, const MorphStep& step) override {
      devices_.prepare(replica_, id, step);
    }
    void commit(MorphId id) override { push(Commit{id}); }
    void abort(MorphId id) override { devices_.prepared_.erase(id); }
    void move_blocks(std::vector<BlockMove> moves) override { push(std::move(moves)); }

   private:
    void push(Work work) { devices_.queue(replica_).push_back(std::move(work)); }
    GroupedDevices& devices_;
    const ReplicaId replica_;
  };

  GroupedDevices(int replicas, std::int64_t blocks, const Form& form, const PageBudget& budget)
      : budget_(budget), queues_(static_cast<std::size_t>(replicas)) {
    for (std::int32_t replica = 0; replica < replicas; ++replica) {
      executors_.push_back(std::make_unique<ReplicaExecutor>(*this, ReplicaId{replica}));
      homes_[ReplicaId{replica}] = {TokenKv(blocks), form};
    }
  }

  void join(const std::vector<ReplicaId>& replicas) override {
    push_change(replicas.front(), Turn::kJoin, replicas);
  }
  void unify(ReplicaId group) override { push_change(group, Turn::kUnify); }
  void divide(ReplicaId group) override { push_change(group, Turn::kDivide); }
  void part(ReplicaId group) override { push_change(group, Turn::kPart); }
  void start(ReplicaId group, std::vector<StepPlan> plans) override {
    ASSERT_TRUE(std::any_of(plans.begin(), plans.end(),
                            [](const StepPlan& plan) { return !plan.tokens.empty(); }));
    queue(group).push_back(Joint{std::move(plans)});
  }
  void keep(ReplicaId group, std::vector<std::vector<BlockId>> live) override {
    queue(group).push_back(Keep{std::move(live)});
  }

  Executor& executor(std::size_t replica) { return *executors_[replica]; }
  std::deque<Work>& queue(ReplicaId replica) {
    return queues_[static_cast<std::size_t>(replica.value)];
  }

  // Does the next work of a replica or group, and returns the events that tell of it.
  std::vector<std::pair<ReplicaId, decltype(Event::what)>> work(ReplicaId replica) {
    events_.clear();
    Work next = std::move(queue(replica).front());
    queue(replica).pop_front();
    std::visit([&](auto& what) { run(replica, what); }, next);
    return std::move(events_);
  }

  // Answers the n-th preparation; the step may have been given up.
  std::pair<ReplicaId, MorphReady> ready(std::size_t n, std::optional<Error> failure) {
    const auto [replica, id] = preparing.at(n);
    preparing.erase(preparing.begin() + static_cast<std::ptrdiff_t>(n));
    const auto found = prepared_.find(id);
    if (found != prepared_.end()) {
      if (failure) {
        prepared_.erase(found);
      } else {
        found->second.ready = true;
      }
    }
    return {replica, MorphReady{id, std::move(failure), {}}};
  }

  const Form& form(ReplicaId replica) const {
    return joined_.contains(replica) && !joined_.at(replica).back().unified
               ? joined_.at(replica).back().form
               : homes_.at(replica).form;
  }
  bool grouped() const { return !joined_.empty(); }
  std::vector<std::pair<ReplicaId, MorphId>> preparing;  // without an answer
  std::vector<std::string> log;

 private:
  struct Home {
    TokenKv kv;
    Form form;
  };
  struct Prepared {
    ReplicaId replica;
    MorphStep step;
    bool ready = false;
  };
  struct Group {
    std::vector<ReplicaId> homes;
    std::vector<Home> parts;  // of unified homes, for their forms
    Form form;
    bool unified = false;
    std::vector<std::vector<BlockId>> live;
  };

  void push_change(ReplicaId first, Turn turn, std::vector<ReplicaId> replicas = {}) {
    for (const auto& [id, prepared] : prepared_) {
      EXPECT_NE(prepared.replica, first) << "a morph step is pending";
    }
    for (const ReplicaId replica : replicas.empty() ? homes_of(first) : replicas) {
      for (const Work& work : queue(replica)) {
        EXPECT_TRUE(!std::holds_alternative<StepPlan>(work) && !std::holds_alternative<Joint>(work))
            << "a step is in flight";
      }
    }
    queue(first).push_back(Change{turn, std::move(replicas)});
  }
  // Returns the homes of the innermost group that is left once the queued changes are done.
  std::vector<ReplicaId> homes_of(ReplicaId first) {
    const auto parts =
        std::count_if(queue(first).begin(), queue(first).end(), [](const Work& work) {
          const auto* change = std::get_if<Change>(&work);
          return change != nullptr && change->turn == Turn::kPart;
        });
    const std::vector<Group> none;
    const auto found = joined_.find(first);
    const std::vector<Group>& groups = found == joined_.end() ? none : found->second;
    return std::ssize(groups) > parts ? (groups.end() - 1 - parts)->homes : std::vector{first};
  }
  Group& group(ReplicaId first) { return joined_.at(first).back(); }

  std::int64_t pages(const Form& form, int device) const {
    return pages_on(group_spec(), form, device, budget_.page_bytes);
  }
  void expect_fits(ReplicaId replica) {
    const auto changes = [](const Work& work) { return std::holds_alternative<Change>(work); };
    if (std::any_of(queue(replica).begin(), queue(replica).end(), changes)) {
      return;  // what is prepared may be for devices that are not joined yet
    }
    const Form& now = form(replica);
    for (int device = 0; device < static_cast<int>(now.group.size()); ++device) {
      std::int64_t used = pages(now, device);
      Form before = now;
      for (const auto& [id, prepared] : prepared_) {
        if (prepared.replica != replica) {
          continue;
        }
        const Form next = after(before, prepared.step);
        const auto* hold = std::get_if<HoldShards>(&prepared.step);
        const auto index = static_cast<std::size_t>(device);
        const std::int64_t weights =
            hold == nullptr ? 0
                            : component_pages(group_spec(), hold->component,
                                              precision_of(before, hold->layer, hold->component),
                                              budget_.page_bytes, before.shards) /
                                  before.shards *
                                  new_shards(hold->runs[index],
                                             before.group[index].of(hold->layer, hold->component));
        used += weights + std::max<std::int64_t>(
                              0, kv_pages_on(group_spec(), next, device, budget_.page_bytes) -
                                     kv_pages_on(group_spec(), before, device, budget_.page_bytes));
        before = next;
      }
      EXPECT_LE(used, budget_.pages) << "device " << device << " of " << replica.value;
    }
  }

  void prepare(ReplicaId replica, MorphId id, const MorphStep& step) {
    EXPECT_TRUE(prepared_.emplace(id, Prepared{replica, step}).second) << "ids are unique";
    preparing.emplace_back(replica, id);
    expect_fits(replica);
  }

  void run(ReplicaId replica, StepPlan& plan) {
    EXPECT_TRUE(!joined_.contains(replica) || group(replica).unified);
    events_.emplace_back(replica, StepDone{homes_.at(replica).kv.compute(plan)});
  }
  void run(ReplicaId first, Joint& joint) {
    EXPECT_FALSE(group(first).unified);
    for (std::size_t home = 0; home < joint.plans.size(); ++home) {
      if (!joint.plans[home].tokens.empty()) {
        const ReplicaId replica = group(first).homes[home];
        events_.emplace_back(replica, StepDone{homes_.at(replica).kv.compute(joint.plans[home])});
      }
    }
  }
  void run(ReplicaId first, Keep& keep) { group(first).live = std::move(keep.live); }
  void run(ReplicaId replica, std::vector<BlockMove>& moves) {
    EXPECT_TRUE(!joined_.contains(replica) || group(replica).unified);
    for (const BlockMove& move : moves) {
      homes_.at(replica).kv.move(move);
    }
  }
  void run(ReplicaId replica, const Commit& commit) {
    const Prepared prepared = prepared_.at(commit.id);
    EXPECT_TRUE(prepared.ready);
    prepared_.erase(commit.id);
    if (const auto* hold = std::get_if<HoldShards>(&prepared.step)) {
      Group& joint = group(replica);
      EXPECT_FALSE(joint.unified);
      joint.form = after(joint.form, prepared.step);
      EXPECT_FALSE(
          copies_of(joint.form.group, hold->layer, hold->component, joint.form.shards).empty());
      if (hold->component == Component::kAttention) {
        for (std::size_t home = 0; home < joint.homes.size(); ++home) {
          homes_.at(joint.homes[home]).kv.keep_only(hold->layer, joint.live.at(home));
        }
      }
    } else {
      Home& home = homes_.at(replica);
      home.form = after(home.form, prepared.step);
      home.kv.resize(home.form.kv.blocks);
    }
    log.push_back(to_string(prepared.step));
    expect_fits(replica);
    events_.emplace_back(replica, MorphDone{commit.id, 0});
  }
  void run(ReplicaId first, Change& change) {
    switch (change.turn) {
      case Turn::kJoin:
        join_now(change.replicas);
        return;
      case Turn::kUnify:
        unify_now(first);
        return;
      case Turn::kDivide:
        divide_now(first);
        return;
      case Turn::kPart:
        part_now(first);
        return;
    }
  }
  void join_now(const std::vector<ReplicaId>& replicas) {
    log.push_back("join");
    for (const ReplicaId replica : replicas) {  // what was asked of each before comes first
      while (replica != replicas.front() && !queue(replica).empty()) {
        Work before = std::move(queue(replica).front());
        queue(replica).pop_front();
        std::visit([&](auto& what) { run(replica, what); }, before);
      }
    }
    const Form& home = homes_.at(replicas.front()).form;
    for (const ReplicaId replica : replicas) {
      EXPECT_EQ(joined_form(homes_.at(replica).form, 1), joined_form(home, 1));
    }
    joined_[replicas.front()].push_back(
        {replicas, {}, joined_form(home, static_cast<int>(replicas.size())), false, {}});
  }
  void unify_now(ReplicaId first) {
    log.push_back("unify");
    Group& joint = group(first);
    const auto count = std::ssize(joint.homes);
    for (int layer = 0; layer < kGroupLayers; ++layer) {
      EXPECT_EQ(copies_of(joint.form.group, layer, Component::kAttention, joint.form.shards).size(),
                1U);
    }
    Home wide{TokenKv(joint.form.kv.blocks), joint.form};
    for (std::int64_t home = 0; home < count; ++home) {
      Home& part = homes_.at(joint.homes[static_cast<std::size_t>(home)]);
      for (std::int64_t block = 0; block < part.kv.blocks(); ++block) {
        for (int layer = 0; layer < kGroupLayers; ++layer) {
          wide.kv.at(layer, block * count + home) = part.kv.at(layer, block);
        }
      }
      joint.parts.push_back(std::move(part));
    }
    homes_.at(first) = std::move(wide);
    joint.unified = true;
  }
  void divide_now(ReplicaId first) {
    log.push_back("divide");
    Group& joint = group(first);
    const auto count = std::ssize(joint.homes);
    Home wide = std::move(homes_.at(first));
    EXPECT_EQ(wide.form, joint.form);
    EXPECT_EQ(wide.form.kv.blocks, joint.parts.front().form.kv.blocks * count);
    for (std::int64_t home = 0; home < count; ++home) {
      Home part{TokenKv(wide.form.kv.blocks / count),
                joint.parts[static_cast<std::size_t>(home)].form};
      for (std::int64_t block = 0; block < part.kv.blocks(); ++block) {
        for (int layer = 0; layer < kGroupLayers; ++layer) {
          part.kv.at(layer, block) = wide.kv.at(layer, block * count + home);
        }
      }
      homes_.at(joint.homes[static_cast<std::size_t>(home)]) = std::move(part);
    }
    joint.parts.clear();
    joint.unified = false;
  }
  void part_now(ReplicaId first) {
    log.push_back("part");
    Group& joint = group(first);
    EXPECT_EQ(joint.form, joined_form(homes_.at(first).form, static_cast<int>(joint.homes.size())));
    joined_.at(first).pop_back();
    if (joined_.at(first).empty()) {
      joined_.erase(first);
    }
  }

  const PageBudget budget_;
  std::vector<std::deque<Work>> queues_;
  std::vector<std::unique_ptr<ReplicaExecutor>> executors_;
  std::map<ReplicaId, Home> homes_;
  std::map<ReplicaId, std::vector<Group>> joined_;
  std::map<MorphId, Prepared> prepared_;
  std::vector<std::pair<ReplicaId, decltype(Event::what)>> events_;
};

}  // namespace protean

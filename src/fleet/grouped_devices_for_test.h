#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "control/plan_regroup.h"
#include "cost/pages.h"
#include "fleet/fleet.h"
#include "fleet/grouped_work_for_test.h"
#include "fleet/token_kv_for_test.h"

// Devices for tests of groups. They work only when the test lets them, count their pages, and hold
// for each layer and block the tokens whose KV it has.

namespace protean {

// The devices of all replicas. A replica's queue holds what it or its group does next.
class GroupedDevices : public DeviceGroups, public KvExchange, public GroupedWork {
 public:
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
    bool holds_up() const override { return devices_.hung_.contains(replica_); }
    bool awaits_turn() const override { return devices_.awaiting_turn.contains(replica_); }
    std::optional<std::uint64_t> pieces_prepared() const override {
      return devices_.pieces_prepared(replica_);
    }
    void give_up() override { devices_.give_up(replica_); }

   private:
    void push(Work work) {
      if (!devices_.dead(replica_)) {
        devices_.queue(replica_).push_back(std::move(work));
      }
    }
    GroupedDevices& devices_;
    const ReplicaId replica_;
  };

  GroupedDevices(const std::vector<Form>& forms, const PageBudget& budget)
      : budget_(budget), queues_(forms.size()) {
    for (const Form& form : forms) {
      const ReplicaId replica{static_cast<std::int32_t>(executors_.size())};
      executors_.push_back(std::make_unique<ReplicaExecutor>(*this, replica));
      homes_[replica] = {TokenKv(form.kv.blocks), form};
    }
  }

  void join(const std::vector<ReplicaId>& replicas) override {
    push_change(replicas.front(), Turn::kJoin, replicas);
  }
  void unify(ReplicaId group) override { push_change(group, Turn::kUnify, homes_of(group)); }
  void divide(ReplicaId group) override { push_change(group, Turn::kDivide, homes_of(group)); }
  void part(ReplicaId group) override { push_change(group, Turn::kPart, homes_of(group)); }
  void start(ReplicaId group, std::vector<StepPlan> plans) override {
    ASSERT_FALSE(std::ranges::all_of(plans, &std::vector<TokenId>::empty, &StepPlan::tokens));
    queue(group).push_back(Joint{std::move(plans), homes_of(group)});
  }
  void keep(ReplicaId group, std::vector<std::vector<BlockId>> live) override {
    queue(group).push_back(Keep{std::move(live)});
  }
  void copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) override {
    queue(to).push_back(CopyIn{id, from, std::move(blocks)});
  }

  Executor& executor(std::size_t replica) { return *executors_[replica]; }
  std::deque<Work>& queue(ReplicaId replica) {
    return queues_[static_cast<std::size_t>(replica.value)];
  }

  std::set<ReplicaId> awaiting_turn;  // replicas of which a device says so

  // From now on a replica's devices do nothing but prepare, and those that compute with them wait.
  void hang(ReplicaId replica) { hung_.insert(replica); }
  // From now on a replica's devices prepare nothing more.
  void stall(ReplicaId replica) { stalled_.insert(replica); }
  // Returns true if a device hangs that the n-th preparation needs, or a replica's next work.
  bool stalls(std::size_t n) {
    const auto found = prepared_.find(preparing.at(n).second);
    return found != prepared_.end() && any_of(found->second.devices, stalled_);
  }
  // Devices that part meet once more.
  bool stuck(ReplicaId first) { return any_of(computing_with(first, true), hung_); }

  // Does the next work of a replica or group, and returns the events that tell of it.
  std::vector<std::pair<ReplicaId, decltype(Event::what)>> work(ReplicaId replica) {
    events_.clear();
    leave_groups(replica, changes_ + 1);
    run_next(replica);
    return std::move(events_);
  }

  // Answers the n-th preparation; the step may have been given up. It cannot fail if all devices
  // that it concerns have.
  std::pair<ReplicaId, MorphReady> ready(std::size_t n, std::optional<Error> failure) {
    const auto [replica, id] = preparing.at(n);
    preparing.erase(preparing.begin() + static_cast<std::ptrdiff_t>(n));
    const auto found = prepared_.find(id);
    if (found != prepared_.end()) {
      const std::set<ReplicaId>& devices = found->second.devices;
      if (std::includes(given_up_.begin(), given_up_.end(), devices.begin(), devices.end())) {
        failure.reset();
        ++steps_of_failed;
      }
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
  int steps_of_failed = 0;  // morph steps that concerned only devices that were given up
  std::vector<std::string> log;

 private:
  // Returns the homes of each group that a replica leads once the queued changes are done, the
  // innermost group first.
  std::vector<std::vector<ReplicaId>> led_by(ReplicaId first) {
    std::vector<std::vector<ReplicaId>> groups;
    if (joined_.contains(first)) {
      std::ranges::transform(joined_.at(first), std::back_inserter(groups), &Group::homes);
    }
    follow(queue(first), groups);
    return groups;
  }
  std::vector<ReplicaId> homes_of(ReplicaId first) {
    const auto groups = led_by(first);
    return groups.empty() ? std::vector{first} : groups.back();
  }
  // Returns the replicas whose devices compute together with this one's once the queued changes are
  // done, with `parting` also if these take them apart.
  std::set<ReplicaId> computing_with(ReplicaId replica, bool parting = false) {
    std::set<ReplicaId> devices = {replica};
    const auto add = [&](const std::vector<ReplicaId>& homes) {
      if (std::any_of(homes.begin(), homes.end(),
                      [&](ReplicaId home) { return devices.contains(home); })) {
        devices.insert(homes.begin(), homes.end());
      }
    };
    for (std::size_t before = 0; before != devices.size();) {
      before = devices.size();
      for (std::size_t i = 0; i < queues_.size(); ++i) {
        std::ranges::for_each(led_by(ReplicaId{static_cast<std::int32_t>(i)}), add);
      }
      if (parting) {
        for (const auto& [leader, groups] : joined_) {
          std::ranges::for_each(groups, add, &Group::homes);
        }
      }
    }
    return devices;
  }
  // Returns the replicas whose devices hold what a step changes.
  std::set<ReplicaId> concerned(ReplicaId replica, const MorphStep& step) {
    const auto* const swap = std::get_if<SwapComponent>(&step);
    if (swap == nullptr) {
      return computing_with(replica);
    }
    std::set<ReplicaId> holders;
    std::size_t device = 0;  // in the order of the replicas, as groups of neighbours have them
    for (const ReplicaId one : computing_with(replica)) {
      if (!form(replica).group.at(device++).of(swap->layer, swap->component).empty()) {
        holders.insert(one);
      }
    }
    return holders;
  }
  bool any_of(const std::set<ReplicaId>& devices, const std::set<ReplicaId>& hang) const {
    return std::any_of(devices.begin(), devices.end(), [&](ReplicaId replica) {
      return hang.contains(replica) && !given_up_.contains(replica);
    });
  }
  std::optional<std::uint64_t> pieces_prepared(ReplicaId replica) {
    for (const auto& [id, step] : prepared_) {
      if (!step.ready && step.devices.contains(replica) && !given_up_.contains(replica)) {
        return stalled_.contains(replica) ? 0 : ++pieces_;
      }
    }
    return std::nullopt;
  }
  // A replica that was given up does nothing more, unless it stands for a group.
  bool dead(ReplicaId replica) {
    return given_up_.contains(replica) && computing_with(replica).size() == 1;
  }
  // Steps of all that compute with the replica are lost, and so is their KV. Others still leave it.
  void give_up(ReplicaId replica) {
    given_up_.insert(replica);
    call_off_copies(computing_with(replica));
    for (const ReplicaId one : computing_with(replica)) {
      for (Work& work : queue(one)) {
        Lost lost;
        if (const auto* plan = std::get_if<StepPlan>(&work)) {
          lost.plans.emplace_back(one, plan->id);
        } else if (const auto* joint = std::get_if<Joint>(&work)) {
          for (std::size_t home = 0; home < joint->plans.size(); ++home) {
            if (!joint->plans[home].tokens.empty()) {
              lost.plans.emplace_back(joint->homes[home], joint->plans[home].id);
            }
          }
        } else {
          continue;
        }
        work = std::move(lost);
      }
      if (homes_.contains(one)) {
        TokenKv& kv = homes_.at(one).kv;
        for (int layer = 0; layer < kGroupLayers; ++layer) {
          kv.keep_only(layer, {});
        }
      }
    }
    if (dead(replica)) {
      while (parting(queue(replica), replica, changes_ + 1)) {
        run_next(replica);
      }
      queue(replica).clear();
      std::erase_if(preparing, [&](const auto& one) { return one.first == replica; });
      std::erase_if(prepared_, [&](const auto& one) { return one.second.replica == replica; });
    }
  }

  // Copies from or to these replicas do not take place any more.
  void call_off_copies(const std::set<ReplicaId>& failed) {
    for (std::size_t to = 0; to < queues_.size(); ++to) {
      for (Work& work : queues_[to]) {
        const auto* copy = std::get_if<CopyIn>(&work);
        if (copy != nullptr && (failed.contains(ReplicaId{static_cast<std::int32_t>(to)}) ||
                                failed.contains(copy->from))) {
          work = Lost();
        }
      }
    }
  }

  void push_change(ReplicaId first, Turn turn, std::vector<ReplicaId> replicas) {
    for (const auto& [id, prepared] : prepared_) {
      EXPECT_NE(prepared.replica, first) << "a morph step is pending";
    }
    for (const ReplicaId replica : replicas) {
      for (const Work& work : queue(replica)) {
        EXPECT_TRUE(!std::holds_alternative<StepPlan>(work) && !std::holds_alternative<Joint>(work))
            << "a step is in flight";
        EXPECT_FALSE(std::holds_alternative<CopyIn>(work)) << "KV is on its way here";
      }
      for (const std::deque<Work>& others : queues_) {
        for (const Work& work : others) {
          const auto* copy = std::get_if<CopyIn>(&work);
          EXPECT_TRUE(copy == nullptr || copy->from != replica) << "KV is on its way from here";
        }
      }
    }
    queue(first).push_back(Change{turn, std::move(replicas), ++changes_});
  }
  Group& group(ReplicaId first) { return joined_.at(first).back(); }

  void expect_fits(ReplicaId replica) {
    const auto changes = [](const Work& work) { return std::holds_alternative<Change>(work); };
    if (std::any_of(queue(replica).begin(), queue(replica).end(), changes)) {
      return;  // what is prepared may be for devices that are not joined yet
    }
    const Form& now = form(replica);
    for (int device = 0; device < static_cast<int>(now.group.size()); ++device) {
      std::int64_t used = pages_on(group_spec(), now, device, budget_.page_bytes);
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
    if (dead(replica)) {
      return;
    }
    EXPECT_TRUE(prepared_.emplace(id, Prepared{replica, step, concerned(replica, step)}).second)
        << "ids are unique";
    preparing.emplace_back(replica, id);
    expect_fits(replica);
  }

  void run_next(ReplicaId replica) {
    if (!queue(replica).empty()) {
      Work next = std::move(queue(replica).front());
      queue(replica).pop_front();
      std::visit([&](auto& what) { run(replica, what); }, next);
    }
  }
  // Lets groups part that other replicas lead and that a replica is to leave by a change that was
  // asked for before another one: its devices come to that first.
  void leave_groups(ReplicaId replica, std::uint64_t before) {
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      const ReplicaId leader{static_cast<std::int32_t>(i)};
      while (const auto number =
                 leader == replica ? std::nullopt : parting(queues_[i], replica, before)) {
        leave_groups(leader, *number);
        run_next(leader);
      }
    }
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
  void run(ReplicaId, Lost& lost) {
    for (const auto& [replica, id] : lost.plans) {
      events_.emplace_back(replica, StepDone{StepResult{.id = id, .sampled = {-1, -1, -1, -1}}});
    }
  }
  void run(ReplicaId first, Keep& keep) { group(first).live = std::move(keep.live); }
  void run(ReplicaId replica, std::vector<BlockMove>& moves) {
    EXPECT_TRUE(!joined_.contains(replica) || group(replica).unified);
    for (const BlockMove& move : moves) {
      homes_.at(replica).kv.move(move);
    }
  }
  void run(ReplicaId to, const CopyIn& copy) {
    EXPECT_TRUE(!joined_.contains(to) || group(to).unified);
    for (const Work& work : queue(copy.from)) {
      const auto* change = std::get_if<Change>(&work);
      EXPECT_TRUE(change == nullptr || change->turn == Turn::kPart) << "blocks get other ids";
    }
    for (const BlockMove& move : copy.blocks) {
      for (int layer = 0; layer < kGroupLayers; ++layer) {
        homes_.at(to).kv.at(layer, move.to) = homes_.at(copy.from).kv.at(layer, move.from);
      }
    }
    events_.emplace_back(to, BlocksCopied{copy.id});
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
        return join_now(change);
      case Turn::kUnify:
        return unify_now(first);
      case Turn::kDivide:
        return divide_now(first);
      case Turn::kPart:
        return part_now(first);
    }
  }
  void join_now(const Change& join) {
    log.push_back("join");
    for (const ReplicaId replica : join.replicas) {  // what was asked of each before comes first
      leave_groups(replica, join.number);
      while (replica != join.replicas.front() && !queue(replica).empty() &&
             precedes(queue(replica).front(), join)) {
        run_next(replica);
      }
    }
    const std::vector<Form> forms = forms_of(homes_, join.replicas);
    for (const Form& form : forms) {
      EXPECT_TRUE(equally_precise(form, forms.front()));
    }
    joined_[join.replicas.front()].push_back({join.replicas, {}, joined_form(forms), false, {}});
  }
  void unify_now(ReplicaId first) {
    log.push_back("unify");
    Group& joint = group(first);
    for (int layer = 0; layer < kGroupLayers; ++layer) {
      EXPECT_EQ(copies_of(joint.form.group, layer, Component::kAttention, joint.form.shards).size(),
                1U);
    }
    Home wide{TokenKv(joint.form.kv.blocks), joint.form};
    for (const ReplicaId home : joint.homes) {
      joint.parts.push_back(std::move(homes_.at(home)));
    }
    const HomeBlocks homes = blocks_of(joint.parts);
    EXPECT_EQ(homes.total(), wide.form.kv.blocks);
    for (BlockId block = 0; block < homes.total(); ++block) {
      const HomeBlocks::Block own = homes.block(block);
      for (int layer = 0; layer < kGroupLayers; ++layer) {
        wide.kv.at(layer, block) =
            joint.parts[static_cast<std::size_t>(own.home)].kv.at(layer, own.block);
      }
    }
    homes_.at(first) = std::move(wide);
    joint.unified = true;
  }
  void divide_now(ReplicaId first) {
    log.push_back("divide");
    Group& joint = group(first);
    Home wide = std::move(homes_.at(first));
    EXPECT_EQ(wide.form, joint.form);
    const HomeBlocks homes = blocks_of(joint.parts);
    EXPECT_EQ(wide.form.kv.blocks, homes.total());
    for (int home = 0; home < homes.count(); ++home) {
      Home part{TokenKv(homes.of(home)), joint.parts[static_cast<std::size_t>(home)].form};
      for (BlockId block = 0; block < homes.of(home); ++block) {
        for (int layer = 0; layer < kGroupLayers; ++layer) {
          part.kv.at(layer, block) = wide.kv.at(layer, homes.number(home, block));
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
    EXPECT_EQ(joint.form, joined_form(forms_of(homes_, joint.homes)));
    joined_.at(first).pop_back();
    std::erase_if(joined_, [](const auto& entry) { return entry.second.empty(); });
  }

  const PageBudget budget_;
  std::vector<std::deque<Work>> queues_;
  std::vector<std::unique_ptr<ReplicaExecutor>> executors_;
  std::map<ReplicaId, Home> homes_;
  std::map<ReplicaId, std::vector<Group>> joined_;
  std::map<MorphId, Prepared> prepared_;
  std::set<ReplicaId> hung_;
  std::set<ReplicaId> stalled_;
  std::uint64_t pieces_ = 0;
  std::uint64_t changes_ = 0;  // asked for so far
  std::set<ReplicaId> given_up_;
  std::vector<std::pair<ReplicaId, decltype(Event::what)>> events_;
};

}  // namespace protean

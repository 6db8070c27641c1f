#include "sim/simulated_devices.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "control/plan_regroup.h"
#include "cost/link_bytes.h"
#include "cost/memory.h"

namespace protean {
namespace {

// After this long without a step, half of what a processor keeps ready (clock, caches) is lost.
constexpr double kHalfAsleepNs = 20 * kNsPerMs;

// Returns the share of StepCost::wake_us that a step after this idle time takes longer.
double asleep(TimeNs idle_ns) {
  const auto idle = static_cast<double>(std::max<TimeNs>(0, idle_ns));
  return idle / (idle + kHalfAsleepNs);
}

TimeNs ns_of(double us) {
  return std::llround(us * static_cast<double>(kNsPerUs));
}

// Returns the link of each device of a replica; none if links are not shared.
std::vector<int> links_of_replica(int replica, int devices, const GroupCost& cost) {
  std::vector<int> links;
  for (int device = 0; device < devices && cost.devices_on_link > 0; ++device) {
    links.push_back((replica * devices + device) / cost.devices_on_link);
  }
  return links;
}

Copy devices_from(int first, std::size_t count) {
  Copy devices(count);
  std::iota(devices.begin(), devices.end(), first);
  return devices;
}

// Returns the share of the KV of all layers that one link carries at most.
double largest_kv_share(const Form& form, std::span<const int> links) {
  std::vector<std::int64_t> held;
  for (const Holding& holding : form.group) {
    held.push_back(std::accumulate(
        holding.layers.begin(), holding.layers.end(), std::int64_t{0},
        [](std::int64_t sum, const Holding::Layer& layer) { return sum + layer.attention.count; }));
  }
  return static_cast<double>(most_bytes(links, held)) /
         static_cast<double>(form.shards * std::ssize(form.layer_precision));
}

}  // namespace

// Devices that compute together: those of one replica, or of joined ones.
struct SimulatedDevices::Group {
  std::vector<ReplicaId> replicas;  // the joined replicas; one: a replica alone
  std::vector<Copy> homes;          // the devices of each home; one home if unified
  std::vector<Copy> homes_apart;    // the copies that the homes of a unified group have apart
  std::vector<int> links;           // the link of each device; empty: see SharedLinks
  std::optional<MorphModel> model;  // the form; without it, the form never changes
  DeviceTimeline timeline;
  std::vector<std::int64_t> live;  // blocks with KV of each home
  std::vector<HomesStretch> way;
  StepPrecision precision;
};

class SimulatedDevices::ReplicaExecutor final : public Executor {
 public:
  ReplicaExecutor(SimulatedDevices& devices, ReplicaId replica)
      : devices_(devices), replica_(replica) {}

  void start(StepPlan plan) override {
    std::vector<StepPlan> plans;
    plans.push_back(std::move(plan));
    devices_.run(replica_, std::move(plans));
  }
  void prepare(MorphId id, const MorphStep& step) override {
    devices_.top(replica_).model->prepare(id, step, devices_.world_.now_ns);
  }
  void commit(MorphId id) override { devices_.commit(replica_, id); }
  void abort(MorphId id) override { devices_.top(replica_).model->abort(id); }
  void move_blocks(std::vector<BlockMove> moves) override {
    Group& group = devices_.top(replica_);
    group.timeline.meet(devices_.world_.now_ns, group.model->moving_ns(moves.size()));
  }
  DeviceUse use() const override { return devices_.top(replica_).timeline.pipeline(); }

 private:
  SimulatedDevices& devices_;
  const ReplicaId replica_;
};

SimulatedDevices::SimulatedDevices(const std::vector<std::optional<MorphModel::Devices>>& replicas,
                                   DeviceTimes times, std::uint64_t seed, SimulatedWorld world)
    : times_(times), seed_(seed), world_(std::move(world)) {
  for (std::int32_t replica = 0; replica < static_cast<std::int32_t>(replicas.size()); ++replica) {
    const auto& form = replicas[static_cast<std::size_t>(replica)];
    const std::size_t devices = form ? form->form.group.size() : 1;
    auto alone =
        std::make_unique<Group>(Group{.replicas = {ReplicaId{replica}},
                                      .homes = {devices_from(0, devices)},
                                      .homes_apart = {},
                                      .links = {},
                                      .model = {},
                                      .timeline = DeviceTimeline(std::vector<TimeNs>(devices, 0)),
                                      .live = {},
                                      .way = {},
                                      .precision = times_.step_precision});
    alone->links = links_of_replica(replica, static_cast<int>(devices), times_.cost);
    if (form) {
      alone->model.emplace(*form, times_.morph, seed_ + static_cast<std::uint64_t>(replica),
                           alone->links);
    }
    refresh(*alone);
    groups_.emplace_back().push_back(std::move(alone));
    executors_.push_back(std::make_unique<ReplicaExecutor>(*this, ReplicaId{replica}));
  }
}

SimulatedDevices::~SimulatedDevices() = default;

Executor& SimulatedDevices::executor(std::size_t replica) {
  return *executors_.at(replica);
}

SimulatedDevices::Group& SimulatedDevices::top(ReplicaId replica) const {
  return *groups_[static_cast<std::size_t>(replica.value)].back();
}

// Finds the way of steps through the group's form.
void SimulatedDevices::refresh(Group& group) const {
  if (!group.model) {
    group.way = way_of({Stretch{.part = {}, .copies = group.homes}}, group.homes);
    return;
  }
  const Form& form = group.model->form();
  group.way = way_of(stretches_of(group.model->spec(), form), group.homes);
  group.precision = step_precision(group.model->spec(), form);
}

void SimulatedDevices::join(const std::vector<ReplicaId>& replicas) {
  std::vector<TimeNs> free_ns;
  Group joined{.replicas = replicas,
               .homes = {},
               .homes_apart = {},
               .links = {},
               .model = {},
               .timeline = DeviceTimeline({}),
               .live = std::vector<std::int64_t>(replicas.size(), 0),
               .way = {},
               .precision = {}};
  const MorphModel& first = *top(replicas.front()).model;
  std::vector<Form> forms;
  for (const ReplicaId replica : replicas) {
    const Group& home = top(replica);
    check(home.homes.size() == 1 && !home.model->pending(), "replicas at rest join");
    check(equally_precise(home.model->form(), first.form()), "replicas of equal precisions join");
    forms.push_back(home.model->form());
    const std::vector<TimeNs>& times_ns = home.timeline.free_ns();
    joined.homes.push_back(devices_from(static_cast<int>(free_ns.size()), times_ns.size()));
    free_ns.insert(free_ns.end(), times_ns.begin(), times_ns.end());
    joined.links.insert(joined.links.end(), home.links.begin(), home.links.end());
  }
  joined.model.emplace(MorphModel::Devices{first.spec(), first.budget(), joined_form(forms)},
                       times_.morph, seed_ + static_cast<std::uint64_t>(replicas.front().value),
                       joined.links);
  joined.timeline = DeviceTimeline(std::move(free_ns));
  joined.timeline.meet(world_.now_ns, 0);
  refresh(joined);
  groups_[static_cast<std::size_t>(replicas.front().value)].push_back(
      std::make_unique<Group>(std::move(joined)));
}

void SimulatedDevices::unify(ReplicaId replica) {
  Group& group = top(replica);
  check(group.homes.size() > 1 && !group.model->pending(), "homes at rest become one");
  const Form& form = group.model->form();
  for (int layer = 0; layer < group.model->spec().layers; ++layer) {
    check(copies_of(form.group, layer, Component::kAttention, form.shards).size() == 1,
          "homes become one if attention has one copy");
  }
  group.homes_apart = std::exchange(group.homes, {devices_from(0, form.group.size())});
  group.timeline.meet(world_.now_ns, 0);
  refresh(group);
}

void SimulatedDevices::divide(ReplicaId replica) {
  Group& group = top(replica);
  check(!group.homes_apart.empty() && !group.model->pending(), "a unified group at rest divides");
  group.homes = std::exchange(group.homes_apart, {});
  group.timeline.meet(world_.now_ns, 0);
  refresh(group);
}

void SimulatedDevices::part(ReplicaId replica) {
  auto& groups = groups_[static_cast<std::size_t>(replica.value)];
  const std::unique_ptr<Group> group = std::move(groups.back());
  groups.pop_back();
  check(group->homes.size() > 1 && !group->model->pending(), "homes at rest part");
  const TimeNs free_ns = group->timeline.meet(world_.now_ns, 0);
  std::vector<Form> forms;
  for (const ReplicaId home : group->replicas) {
    forms.push_back(top(home).model->form());
    top(home).timeline.meet(free_ns, 0);
  }
  check(joined_form(forms) == group->model->form(), "each home parts with what it came with");
  ended_pipelines_ += group->timeline.pipeline();
}

void SimulatedDevices::start(ReplicaId group, std::vector<StepPlan> plans) {
  run(group, std::move(plans));
}

void SimulatedDevices::keep(ReplicaId group, std::vector<std::vector<BlockId>> live) {
  std::vector<std::int64_t>& counts = top(group).live;
  counts.clear();
  for (const std::vector<BlockId>& blocks : live) {
    counts.push_back(std::ssize(blocks));
  }
}

// The devices that receive copy at the same time, each what it holds of the blocks.
void SimulatedDevices::copy(CopyId id, ReplicaId, ReplicaId to, std::vector<BlockMove> blocks) {
  Group& group = top(to);
  const double share = group.model ? largest_kv_share(group.model->form(), group.links) : 1;
  const double us = times_.block_copy_us * share * static_cast<double>(blocks.size());
  const TimeNs begin_ns = std::max(world_.now_ns, group.timeline.all_free_ns());
  const TimeNs end_ns = links_.take(group.links, begin_ns, ns_of(us));
  group.timeline.meet(begin_ns, end_ns - begin_ns);
  world_.heap.push({end_ns, BlocksCopied{id}, to});
}

StepWork SimulatedDevices::work_of_plan(const Group& group, const StepPlan& plan) const {
  return group.model ? work_of(plan, group.model->spec()) : work_of(plan);
}

StepResult SimulatedDevices::result_of(const StepPlan& plan) const {
  StepResult result{.id = plan.id};
  result.sampled.resize(plan.samples.size());
  for (const SequenceSlice& slice : plan.slices) {
    if (slice.sample >= 0) {
      const auto index = static_cast<std::size_t>(slice.sample);
      result.sampled[index] = world_.draw(slice.request, plan.samples[index].position);
    }
  }
  return result;
}

// Takes tokens off a plan whose KV was computed before, and returns how many.
std::int64_t SimulatedDevices::take_swapped(StepPlan& plan) {
  std::int64_t swapped = 0;
  for (SequenceSlice& slice : plan.slices) {
    int& computed = computed_[slice.request];
    const int end = slice.first_position + slice.token_count;
    const int back = std::clamp(computed - slice.first_position, 0, slice.token_count);
    slice.first_position += back;
    slice.token_count -= back;
    computed = std::max(computed, end);
    swapped += back;
  }
  std::erase_if(plan.slices, [](const SequenceSlice& slice) { return slice.token_count == 0; });
  plan.tokens.resize(plan.tokens.size() - static_cast<std::size_t>(swapped));
  return swapped;
}

// Leaves what is to be computed in plans, and returns how long KV takes to come from host memory.
TimeNs SimulatedDevices::swap_in(const Group& group, std::vector<StepPlan>& plans) {
  std::int64_t tokens = 0;
  for (StepPlan& plan : plans) {
    tokens += take_swapped(plan);
  }
  const Form& form = group.model->form();
  const std::int64_t blocks = ceil_div<std::int64_t>(tokens, form.kv.block_tokens);
  const auto bytes = static_cast<double>(blocks * kv_block_bytes(group.model->spec(), form.kv));
  return ns_of(bytes / static_cast<double>(form.group.size()) / times_.morph.swap_bytes_per_us);
}

// Runs a step with a plan for each home.
void SimulatedDevices::run(ReplicaId first, std::vector<StepPlan> plans) {
  Group& group = top(first);
  check(plans.size() == group.homes.size(), "a step has a plan for each home");
  const bool swaps = times_.morph.swap_bytes_per_us > 0 && group.model;
  std::vector<StepPlan> computed = swaps ? plans : std::vector<StepPlan>();
  const TimeNs swap_ns = swaps ? swap_in(group, computed) : 0;
  std::vector<StepWork> works;
  for (const StepPlan& plan : swaps ? computed : plans) {
    works.push_back(work_of_plan(group, plan));
  }
  const TimeNs begun_ns = std::max(world_.now_ns, group.timeline.all_free_ns());
  const bool copies = group.model && group.model->copying();
  const double slower = copies ? 1 + times_.morph.step_slowdown : 1;
  const double asleep_share = asleep(world_.now_ns - group.timeline.all_free_ns());
  const double element_bytes = times_.cost.activation_bytes;
  const int hidden = group.model ? group.model->spec().hidden : 0;
  std::vector<TimeNs> done_ns = group.timeline.run(
      group.way, works, world_.now_ns,
      {.compute =
           [&](std::size_t devices, const StepWork& work, const DeviceWork& part) {
             const StepCost& cost = times_.cost.on(devices);
             const double wake_us = part.begins ? asleep_share * cost.wake_us : 0;
             return ns_of(wake_us + slower * predict_us(cost, work, group.precision, part));
           },
       .send =
           [&](const StepWork& work, const Copy& to, TimeNs ready_ns) {
             std::vector<int> links;
             for (std::size_t i = 0; i < to.size() && !group.links.empty(); ++i) {
               links.push_back(group.links[static_cast<std::size_t>(to[i])]);
             }
             const std::vector<std::int64_t> bytes(
                 to.size(), std::llround(work.tokens * hidden * element_bytes));
             return links_.arrive_ns(times_.cost.rows, links, bytes, ready_ns);
           }});
  if (swap_ns > 0) {  // what is computed meanwhile hides it
    const TimeNs swapped_ns = group.timeline.meet(
        world_.now_ns, std::max<TimeNs>(0, begun_ns + swap_ns - group.timeline.all_free_ns()));
    std::fill(done_ns.begin(), done_ns.end(), swapped_ns);
  }
  for (std::size_t home = 0; home < plans.size(); ++home) {
    if (!plans[home].tokens.empty()) {
      const ReplicaId replica = plans.size() == 1 ? first : group.replicas[home];
      world_.heap.push({done_ns[home], StepDone{result_of(plans[home])}, replica});
    }
  }
}

// Returns how long the devices exchange KV when the step is committed.
TimeNs SimulatedDevices::exchange_ns(Group& group, const MorphStep& step) {
  const auto* hold = std::get_if<HoldShards>(&step);
  if (hold == nullptr || hold->component != Component::kAttention) {
    return 0;
  }
  const std::vector<std::int64_t> each =
      kv_bytes_received(group.model->spec(), group.model->form(), *hold, group.homes, group.live);
  kv_bytes_exchanged_ += *std::max_element(each.begin(), each.end());
  const TimeNs begin_ns = std::max(world_.now_ns, group.timeline.all_free_ns());
  return links_.arrive_ns(times_.cost.exchange, group.links, each, begin_ns) - begin_ns;
}

void SimulatedDevices::commit(ReplicaId replica, MorphId id) {
  Group& group = top(replica);
  const TimeNs exchange = exchange_ns(group, group.model->prepared(id));
  MorphDone done = group.model->commit(id);
  world_.heap.push({group.timeline.meet(world_.now_ns, exchange), done, replica});
  refresh(group);
}

// Returns the links of the group's background copy.
BackgroundLinks SimulatedDevices::links_of(const Group& group) const {
  const bool shares = !group.links.empty() && group.model->fetching();
  return shares ? BackgroundLinks{&links_, group.links} : BackgroundLinks{};
}

std::optional<TimeNs> SimulatedDevices::copied_ns(const Group& group) const {
  return group.model
             ? group.model->copied_ns(world_.now_ns, group.timeline.all_free_ns(), links_of(group))
             : std::nullopt;
}

// Returns the replica whose group's copy ends first.
std::size_t SimulatedDevices::next_copier() const {
  std::size_t first = 0;
  TimeNs first_ns = kNever;
  for (std::size_t replica = 0; replica < groups_.size(); ++replica) {
    const TimeNs end_ns = copied_ns(*groups_[replica].back()).value_or(kNever);
    if (end_ns < first_ns) {
      first = replica;
      first_ns = end_ns;
    }
  }
  return first;
}

TimeNs SimulatedDevices::copied_ns() const {
  return copied_ns(*groups_[next_copier()].back()).value_or(kNever);
}

void SimulatedDevices::copy_until(TimeNs until_ns) {
  for (const auto& groups : groups_) {
    Group& group = *groups.back();
    if (group.model) {
      group.model->copy_until(world_.now_ns, until_ns, group.timeline.all_free_ns(),
                              links_of(group));
    }
  }
  links_.forget_before(until_ns);
}

Event SimulatedDevices::take_copied() {
  const std::size_t replica = next_copier();
  return {world_.now_ns, groups_[replica].back()->model->take_copied(),
          ReplicaId{static_cast<std::int32_t>(replica)}};
}

DeviceUse SimulatedDevices::pipelines() const {
  DeviceUse sum = ended_pipelines_;
  for (const auto& groups : groups_) {
    for (const auto& group : groups) {
      sum += group->timeline.pipeline();
    }
  }
  return sum;
}

}  // namespace protean

#include "worker/cpu_worker.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"
#include "worker/kv_move.h"

namespace protean {
namespace {

MorphHandlers complete(MorphHandlers handlers) {
  if (!handlers.ready) {
    handlers.ready = [](const MorphReady&) {};
  }
  if (!handlers.done) {
    handlers.done = [](const MorphDone&) {};
  }
  return handlers;
}

// Returns the devices that hold a part of what the step changes.
std::vector<int> concerned(const Form& form, const MorphStep& step) {
  const auto holds = [&](const Holding& holding) {
    return std::visit(Overloaded{[&](const SwapComponent& swap) {
                                   return !holding.of(swap.layer, swap.component).empty();
                                 },
                                 [](const HoldShards&) { return true; },
                                 [&](const ResizeKv&) {
                                   return std::any_of(holding.layers.begin(), holding.layers.end(),
                                                      [](const Holding::Layer& layer) {
                                                        return !layer.attention.empty();
                                                      });
                                 }},
                      step);
  };
  std::vector<int> devices;
  for (std::size_t device = 0; device < form.group.size(); ++device) {
    if (holds(form.group[device])) {
      devices.push_back(static_cast<int>(device));
    }
  }
  return devices;
}

// Returns why a step cannot be prepared at all; nothing if it can be tried.
std::optional<Error> refusal(const Formation& formation, const MorphStep& step, bool has_pages,
                             std::int64_t least_kv_blocks) {
  if (!has_pages) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: this worker's memory is for life: start with a memory budget to let its "
                      "form change",
                      to_string(step));
  }
  const int layers = static_cast<int>(formation.form.layer_precision.size());
  const auto exists = [&](int layer) { return layer >= 0 && layer < layers; };
  const auto* const swap = std::get_if<SwapComponent>(&step);
  const auto* const hold = std::get_if<HoldShards>(&step);
  if ((swap != nullptr && !exists(swap->layer)) || (hold != nullptr && !exists(hold->layer))) {
    return make_error(ErrorCode::kInvalidArgument, "{}: the model has layers 0 to {}",
                      to_string(step), layers - 1);
  }
  const std::optional<std::int64_t> blocks = kv_blocks_of(step);
  if (blocks && *blocks < least_kv_blocks) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}: a group of joined replicas keeps at least their {} blocks: part it first",
        to_string(step), least_kv_blocks);
  }
  if (hold != nullptr &&
      (formation.home_count() < 2 || hold->runs.size() != formation.form.group.size())) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: only devices of replicas that are joined can share what they hold: join "
                      "the replicas first, and name the shards of each of the group's devices",
                      to_string(step));
  }
  return std::nullopt;
}

}  // namespace

bool cpus_suffice(std::span<const WorkerDevice> devices) {
  std::size_t threads = 0;
  std::set<int> cpus;
  bool fits = true;
  for (const WorkerDevice& device : devices) {
    const auto own = static_cast<std::size_t>(device.threads);
    threads += own;
    cpus.insert(device.where.cpus.begin(), device.where.cpus.end());
    fits = fits && (device.where.cpus.empty() || own <= device.where.cpus.size());
  }
  const std::size_t all = cpus.empty() ? std::thread::hardware_concurrency() : cpus.size();
  return fits && threads <= all;
}

Result<std::unique_ptr<CpuWorker>> CpuWorker::create(const WorkerOptions& options,
                                                     const Checkpoint& checkpoint,
                                                     const LoadProgress& progress,
                                                     StepDoneHandler done,
                                                     MorphHandlers morph_handlers) {
  check(done != nullptr, "a worker needs a handler of finished steps");
  check(options.background_share > 0 && options.background_share <= 1,
        "a share of the threads is above 0 and at most 1");
  check(options.max_in_flight > 0, "a worker computes at least one step at a time");
  if (options.devices.size() != options.form.group.size() || options.devices.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "a form for {} devices needs as many, got {}",
                      options.form.group.size(), options.devices.size());
  }
  std::unique_ptr<CpuWorker> worker(
      new CpuWorker(options, std::move(done), complete(std::move(morph_handlers))));
  if (const Status added = worker->add_devices(options, checkpoint, progress); !added) {
    return added.error();
  }
  return worker;
}

CpuWorker::CpuWorker(const WorkerOptions& options, StepDoneHandler done, MorphHandlers handlers)
    : done_(std::move(done)),
      handlers_(std::move(handlers)),
      moves_kv_early_(options.moves_kv_early) {
  if (options.joining) {
    fabric_ = options.joining->fabric;
    first_device_ = options.joining->first_device;
  }
}

Status CpuWorker::add_devices(const WorkerOptions& options, const Checkpoint& checkpoint,
                              const LoadProgress& progress) {
  const Form& form = options.form;
  kv_heads_of_shard_ = checkpoint.spec().attention.kv_heads / form.shards;
  if (fabric_ == nullptr && form.group.size() > 1) {
    Result<std::unique_ptr<Fabric>> fabric =
        Fabric::create({.devices = static_cast<int>(form.group.size()),
                        .rows = options.max_step_tokens,
                        .hidden = checkpoint.spec().hidden,
                        .steps_in_flight = options.max_in_flight,
                        .spins = cpus_suffice(options.devices)});
    if (!fabric) {
      return fabric.error();
    }
    fabric_ = std::move(*fabric);
  }
  for (int device = 0; device < static_cast<int>(form.group.size()); ++device) {
    DeviceWorker::Handlers handlers{
        .morph = {.ready =
                      [this, device](MorphReady ready) {
                        leader_.load()->on_ready(first_in_group_ + device, std::move(ready));
                      },
                  .done =
                      [this, device](MorphDone done) {
                        leader_.load()->on_done(done.id, first_in_group_ + device);
                      }},
        .failed = options.devices_failed ? options.devices_failed : [](const std::string&) {}};
    Result<std::unique_ptr<DeviceWorker>> added = DeviceWorker::create(
        options, checkpoint, progress,
        {.device = device, .fabric = fabric_.get(), .on_fabric = first_device_ + device},
        std::move(handlers));
    if (!added) {
      return added.error();
    }
    devices_.push_back(std::move(*added));
  }
  stand_alone(form);
  return {};
}

CpuWorker::~CpuWorker() {
  check(stop(), "a worker with a device that hangs is not destroyed");
}

void CpuWorker::close() {
  for (const auto& device : devices_) {
    device->close();
  }
}

bool CpuWorker::stop() {
  close();
  // Their threads answer to this worker, which asks all devices, until the last one has ended.
  bool stopped = true;
  for (const auto& device : devices_) {
    stopped = device->finish() && stopped;
  }
  return stopped;
}

bool CpuWorker::ends_by(std::chrono::steady_clock::time_point until) {
  return std::all_of(devices_.begin(), devices_.end(),
                     [&](const auto& device) { return device->ends_by(until); });
}

bool CpuWorker::holds_up() const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [](const auto& device) { return device->holds_up(); });
}

std::optional<std::uint64_t> CpuWorker::pieces_prepared() const {
  std::optional<std::uint64_t> sum;
  for (const auto& device : devices_) {
    if (const auto pieces = device->pieces_prepared()) {
      sum = sum.value_or(0) + *pieces;
    }
  }
  return sum;
}

std::vector<int> CpuWorker::failing_devices() const {
  const auto all = [this](bool (DeviceWorker::*fails)() const) {
    std::vector<int> failing;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      failing.insert(failing.end(), (*devices_[i].*fails)() ? 1 : 0, static_cast<int>(i));
    }
    return failing;
  };
  const std::vector<int> lost = all(&DeviceWorker::has_lost_memory);
  return lost.empty() ? all(&DeviceWorker::holds_up) : lost;
}

void CpuWorker::give_up() {
  CpuWorker& leader = *leader_.load();
  MorphAnswers::Answered answered;
  {
    const std::lock_guard lock(leader.order_);
    std::vector<int> given_up;
    for (const auto& device : devices_) {
      given_up.push_back(first_in_group_ + static_cast<int>(given_up.size()));
      device->give_up();
    }
    answered = leader.answers_.give_up(given_up);
  }
  for (MorphReady& ready : answered.ready) {
    leader.handlers_.ready(std::move(ready));
  }
  for (const MorphId id : answered.done) {
    leader.tell_done(id);
  }
}

bool CpuWorker::awaits_turn() const {
  const std::vector<DeviceWorker*>& devices = leader_.load()->group().devices;
  return std::any_of(devices.begin(), devices.end(),
                     [](const DeviceWorker* device) { return device->awaits_turn(); });
}

// The devices of a group compute for all its homes.
void CpuWorker::rest() {
  has_requests_ = false;
  const Group& all = leader_.load()->group();
  if (std::none_of(all.members.begin(), all.members.end(),
                   [](const CpuWorker* member) { return member->has_requests_; })) {
    for (DeviceWorker* const device : all.devices) {
      device->rest();
    }
  }
}

void CpuWorker::start(StepPlan plan) {
  std::vector<StepPlan> plans;
  plans.push_back(std::move(plan));
  start(std::move(plans));
}

void CpuWorker::start(std::vector<StepPlan> plans) {
  check(std::ssize(plans) == group().formation.home_count(), "a step has a plan for each home");
  const std::lock_guard lock(order_);
  const auto homes = std::make_shared<const std::vector<CpuWorker*>>(group().homes);
  for (std::size_t home = 0; home < plans.size(); ++home) {
    CpuWorker& worker = *(*homes)[home];
    worker.has_requests_ = worker.has_requests_ || !plans[home].tokens.empty();
  }
  const std::shared_ptr<UseMeter> meter = group().meter;
  passed_.step = number_ + 1;
  const GroupStep step{++number_, std::make_shared<const std::vector<StepPlan>>(std::move(plans)),
                       [homes, meter](HomeResult result) {
                         if (meter) {
                           meter->step_ends(UseMeter::now_ns());
                         }
                         const auto home = static_cast<std::size_t>(result.home);
                         (*homes)[home]->done_(std::move(result.result));
                       },
                       meter};
  if (meter) {
    meter->step_begins(UseMeter::now_ns());
  }
  for (DeviceWorker* const device : group().devices) {
    device->push(step);
  }
}

// Devices that are joined with others' have the pages that all count on.
bool CpuWorker::set_quota(std::int64_t pages) {
  if (!has_pages() || groups_.size() > 1 || leader_.load() != this) {
    return false;
  }
  std::vector<std::int64_t> before;
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    before.push_back(devices_[device]->pages());
    if (devices_[device]->set_quota(pages - lacking_pages(device)).ok()) {
      continue;
    }
    for (std::size_t done = 0; done < device; ++done) {
      check(devices_[done]->set_quota(before[done]).ok(), "a larger quota is never refused");
    }
    return false;
  }
  return true;
}

DeviceUse CpuWorker::use() const {
  return group().meter ? group().meter->use() : DeviceUse();
}

WantedWeights CpuWorker::wanted_of(const MorphStep& step, int device) const {
  const Form& form = group().formation.form;
  const Holding& holding = form.group[static_cast<std::size_t>(device)];
  WantedWeights wanted{
      .step = step, .component = {}, .shards = {}, .peer = {}, .peer_is_sound = {}, .kv = {}};
  if (const auto* const swap = std::get_if<SwapComponent>(&step)) {
    wanted.component = *swap;
    wanted.shards =
        shards_of(shards_kept(form, swap->component, holding.of(swap->layer, swap->component)));
    return wanted;
  }
  const auto& [layer, component, runs] = std::get<HoldShards>(step);
  const ShardRun& run = runs[static_cast<std::size_t>(device)];
  wanted.component = {layer, component, precision_of(form, layer, component)};
  wanted.shards = shards_of(shards_kept(form, component, run),
                            shards_kept(form, component, holding.of(layer, component)));
  // What others keep meanwhile is copied from them. Who they are is looked up now, because the form
  // may change while weights are fetched.
  const auto peers = std::make_shared<std::unordered_map<int, DeviceWorker*>>();
  for (const int shard : wanted.shards) {
    for (std::size_t peer = 0; peer < form.group.size(); ++peer) {
      if (shards_kept(form, component, form.group[peer].of(layer, component)).has(shard) &&
          !group().devices[peer]->given_up()) {
        peers->emplace(shard, group().devices[peer]);
      }
    }
  }
  wanted.peer = [peers, which = wanted.component,
                 shards = form.shards](int shard) -> std::shared_ptr<const std::byte> {
    const auto found = peers->find(shard);
    return found == peers->end() ? nullptr
                                 : found->second->rank().find_shard(
                                       {which.layer, which.component, which.to, shard, shards});
  };
  wanted.peer_is_sound = [peers](int shard) { return peers->at(shard)->sound(); };
  if (component == Component::kAttention && !run.empty()) {
    Formation next = group().formation;
    next.form = after(std::move(next.form), step);
    // The store may not have come to this formation yet, so its own number of blocks does not
    // count.
    const std::int64_t own = next.blocks().of(next.home_with(device));
    wanted.kv = {.layer = layer,
                 .kv_heads = kv_heads_of_shard_ * run.count,
                 .places = own + kv_move(group().formation, next, layer, device).others};
  }
  return wanted;
}

void CpuWorker::prepare(MorphId id, const MorphStep& step) {
  if (auto refused = refusal(group().formation, step, has_pages(), group().least_kv_blocks)) {
    handlers_.ready({.id = id, .failure = std::move(refused)});
    return;
  }
  std::vector<int> devices = concerned(group().formation.form, step);
  std::erase_if(devices, [this](int device) {
    return group().devices[static_cast<std::size_t>(device)]->given_up();
  });
  {
    // A device that fails at once must not abort the step on one that has not begun it.
    const std::lock_guard lock(order_);
    answers_.expect(id, devices);
    steps_.emplace(id, step);
    prepare_on(devices, id, step);
  }
  if (devices.empty()) {  // those that it concerns have failed
    handlers_.ready({.id = id, .failure = std::nullopt});
  }
}

// Gives devices a step to prepare, under the lock.
void CpuWorker::prepare_on(const std::vector<int>& devices, MorphId id, const MorphStep& step) {
  for (const int device : devices) {
    DeviceWorker& worker = *group().devices[static_cast<std::size_t>(device)];
    if (const auto* const resize = std::get_if<ResizeKv>(&step)) {
      worker.prepare(id, *resize);
    } else {
      worker.prepare(id, wanted_of(step, device));
    }
  }
}

void CpuWorker::on_ready(int device, MorphReady ready) {
  const MorphId id = ready.id;
  std::optional<MorphReady> answer = answers_.ready(std::move(ready), device);
  if (!answer) {
    return;
  }
  if (answer->failure) {
    const std::lock_guard lock(order_);
    steps_.erase(id);
    for (const int other : answers_.drop(id)) {
      if (other != device) {
        group().devices[static_cast<std::size_t>(other)]->abort(id);
      }
    }
  }
  handlers_.ready(*std::move(answer));
}

void CpuWorker::commit(MorphId id) {
  const std::vector<int> devices = answers_.commit(id);
  {
    const std::lock_guard lock(order_);
    const MorphStep step = std::move(steps_.extract(id).mapped());
    if (const auto* const hold = std::get_if<HoldShards>(&step)) {
      commit_hold(id, *hold);
    } else {
      Form& form = group().formation.form;
      form = after(std::move(form), step);
      if (std::holds_alternative<ResizeKv>(step)) {
        passed_.all = number_ + 1;  // it has no number, so it ends when the next one does that has
      }
      for (const int device : devices) {
        group().devices[static_cast<std::size_t>(device)]->push(id);
      }
    }
  }
  if (devices.empty()) {  // those that it concerns have failed
    tell_done(id);
  }
}

void CpuWorker::on_done(MorphId id, int device) {
  if (answers_.done(id, device)) {
    tell_done(id);
  }
}

void CpuWorker::tell_done(MorphId id) {
  std::int64_t pages_free = std::numeric_limits<std::int64_t>::max();
  for (const DeviceWorker* const device : group().devices) {
    pages_free = std::min(pages_free, device->free_pages());
  }
  handlers_.done({.id = id, .pages_free = pages_free});
}

void CpuWorker::abort(MorphId id) {
  const std::lock_guard lock(order_);
  steps_.erase(id);
  for (const int device : answers_.drop(id)) {
    group().devices[static_cast<std::size_t>(device)]->abort(id);
  }
}

void CpuWorker::move_blocks(std::vector<BlockMove> moves) {
  const std::lock_guard lock(order_);
  passed_.all = number_ + 1;
  for (DeviceWorker* const device : group().devices) {
    device->push(moves);
  }
}

std::int64_t CpuWorker::kv_bytes_moved_early() const {
  std::int64_t bytes = 0;
  for (const DeviceWorker* const device : group().devices) {
    bytes += device->kv_bytes_moved_early();
  }
  return bytes;
}

WorkerMemory CpuWorker::memory() const {
  WorkerMemory sum;
  for (const auto& device : devices_) {
    const WorkerMemory memory = device->memory();
    sum.weight_bytes += memory.weight_bytes;
    sum.kv_bytes += memory.kv_bytes;
    sum.scratch_bytes += memory.scratch_bytes;
  }
  if (fabric_ != nullptr) {
    sum.scratch_bytes += fabric_->bytes() / fabric_->devices() * std::ssize(devices_);
  }
  return sum;
}

std::int64_t CpuWorker::backed_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& device : devices_) {
    bytes += device->backed_bytes();
  }
  return bytes;
}

}  // namespace protean

#include "worker/cpu_worker.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"

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
std::optional<Error> refusal(const Form& form, const MorphStep& step, bool has_pages) {
  if (!has_pages) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: this worker's memory is for life: start with a memory budget to let its "
                      "form change",
                      to_string(step));
  }
  if (std::holds_alternative<HoldShards>(step)) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: the devices of one replica hold what they began with: join it with "
                      "another replica first",
                      to_string(step));
  }
  const auto* const swap = std::get_if<SwapComponent>(&step);
  const int layers = static_cast<int>(form.layer_precision.size());
  if (swap != nullptr && (swap->layer < 0 || swap->layer >= layers)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: the model has layers 0 to {}",
                      to_string(step), layers - 1);
  }
  return std::nullopt;
}

// True if every thread of all devices can have a CPU of its own.
bool cpus_suffice(const WorkerOptions& options) {
  std::size_t threads = 0;
  std::set<int> cpus;
  bool fits = true;
  for (const WorkerDevice& device : options.devices) {
    const auto own = static_cast<std::size_t>(device.threads);
    threads += own;
    cpus.insert(device.where.cpus.begin(), device.where.cpus.end());
    fits = fits && (device.where.cpus.empty() || own <= device.where.cpus.size());
  }
  const std::size_t all = cpus.empty() ? std::thread::hardware_concurrency() : cpus.size();
  return fits && threads <= all;
}

}  // namespace

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
      new CpuWorker(options.form, complete(std::move(morph_handlers))));
  if (const Status added = worker->add_devices(options, checkpoint, progress, done); !added) {
    return added.error();
  }
  return worker;
}

CpuWorker::CpuWorker(Form form, MorphHandlers handlers)
    : form_(std::move(form)), handlers_(std::move(handlers)) {}

Status CpuWorker::add_devices(const WorkerOptions& options, const Checkpoint& checkpoint,
                              const LoadProgress& progress, const StepDoneHandler& done) {
  if (form_.group.size() > 1) {
    Result<std::unique_ptr<Group>> group = Group::create(form_, checkpoint.spec(),
                                                         {.rows = options.max_step_tokens,
                                                          .steps_in_flight = options.max_in_flight,
                                                          .spins = cpus_suffice(options)});
    if (!group) {
      return group.error();
    }
    group_ = std::move(*group);
  }
  for (int device = 0; device < static_cast<int>(form_.group.size()); ++device) {
    DeviceWorker::Handlers handlers{
        .step_done = done,
        .morph = {.ready = [this, device](MorphReady ready) { on_ready(device, std::move(ready)); },
                  .done = [this](MorphDone done_one) { on_done(done_one.id); }}};
    Result<std::unique_ptr<DeviceWorker>> added = DeviceWorker::create(
        options, checkpoint, progress, {device, group_.get()}, std::move(handlers));
    if (!added) {
      return added.error();
    }
    devices_.push_back(std::move(*added));
  }
  return {};
}

CpuWorker::~CpuWorker() {
  stop();
}

void CpuWorker::stop() {
  for (const auto& device : devices_) {
    device->close();
  }
  // Their threads answer to this worker, which asks all devices, until the last one has ended.
  for (const auto& device : devices_) {
    device->finish();
  }
}

void CpuWorker::start(StepPlan plan) {
  const auto shared = std::make_shared<const StepPlan>(std::move(plan));
  const std::lock_guard lock(order_);
  for (const auto& device : devices_) {
    device->push(shared);
  }
}

void CpuWorker::prepare(MorphId id, const MorphStep& step) {
  if (auto refused = refusal(form_, step, has_pages())) {
    handlers_.ready({.id = id, .failure = std::move(refused)});
    return;
  }
  const std::vector<int> devices = concerned(form_, step);
  // A device that fails at once must not abort the step on one that has not begun it.
  const std::lock_guard lock(order_);
  answers_.expect(id, devices);
  for (const int device : devices) {
    devices_[static_cast<std::size_t>(device)]->prepare(id, step);
  }
}

void CpuWorker::on_ready(int device, MorphReady ready) {
  const MorphId id = ready.id;
  std::optional<MorphReady> answer = answers_.ready(std::move(ready));
  if (!answer) {
    return;
  }
  if (answer->failure) {
    const std::lock_guard lock(order_);
    for (const int other : answers_.drop(id)) {
      if (other != device) {
        devices_[static_cast<std::size_t>(other)]->abort(id);
      }
    }
  }
  handlers_.ready(*std::move(answer));
}

void CpuWorker::commit(MorphId id) {
  const std::vector<int> devices = answers_.devices_of(id);
  check(!devices.empty(), "what is committed was prepared and not aborted");
  const std::lock_guard lock(order_);
  for (const int device : devices) {
    devices_[static_cast<std::size_t>(device)]->push(id);
  }
}

void CpuWorker::on_done(MorphId id) {
  if (!answers_.done(id)) {
    return;
  }
  std::int64_t pages_free = std::numeric_limits<std::int64_t>::max();
  for (const auto& device : devices_) {
    pages_free = std::min(pages_free, device->free_pages());
  }
  handlers_.done({.id = id, .pages_free = pages_free});
}

void CpuWorker::abort(MorphId id) {
  const std::lock_guard lock(order_);
  for (const int device : answers_.drop(id)) {
    devices_[static_cast<std::size_t>(device)]->abort(id);
  }
}

void CpuWorker::move_blocks(std::vector<BlockMove> moves) {
  const std::lock_guard lock(order_);
  for (const auto& device : devices_) {
    device->push(moves);
  }
}

void CpuWorker::copy_blocks(const CpuWorker& source, const std::vector<BlockMove>& moves,
                            std::function<void()> done) {
  check(source.devices_.size() == devices_.size(), "equal groups copy KV");
  const auto left = std::make_shared<std::atomic<std::size_t>>(devices_.size());
  const auto one_done = [left, done = std::move(done)] {
    if (left->fetch_sub(1) == 1) {
      done();
    }
  };
  const std::lock_guard lock(order_);
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    devices_[device]->push(KvCopy{&source.devices_[device]->rank(), moves, one_done});
  }
}

WorkerMemory CpuWorker::memory() const {
  WorkerMemory sum;
  for (const auto& device : devices_) {
    const WorkerMemory memory = device->memory();
    sum.weight_bytes += memory.weight_bytes;
    sum.kv_bytes += memory.kv_bytes;
    sum.scratch_bytes += memory.scratch_bytes;
  }
  sum.scratch_bytes += group_ == nullptr ? 0 : group_->bytes();
  return sum;
}

}  // namespace protean

#include "replica/workers.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/log.h"
#include "device/cpu/seat.h"
#include "host/machine.h"
#include "replica/one_replica.h"
#include "replica/variant_packing.h"
#include "terminal/progress.h"

namespace protean {

TimeNs steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

namespace {

std::vector<WorkerDevice> devices_on(std::span<const CpuShare> shares) {
  std::vector<WorkerDevice> devices;
  for (const CpuShare& cpus : shares) {
    devices.push_back({.threads = cpus.threads, .where = cpus.where});
  }
  return devices;
}

// Makes what replicas share that may be joined; null if they may not.
Result<std::shared_ptr<Fabric>> create_fabric(const ReplicaOptions& options,
                                              const ModelSpec& spec) {
  if (!may_join(options)) {
    return std::shared_ptr<Fabric>();
  }
  const ModelOptions& model = options.model;
  const auto devices = static_cast<int>(options.sizing.devices.size());
  Result<std::unique_ptr<Fabric>> fabric =
      Fabric::create({.devices = devices,
                      .rows = joint_rows(model.max_num_batched_tokens, options.sizing.replicas(),
                                         model.max_num_seqs),
                      .hidden = spec.hidden,
                      .steps_in_flight = joint_steps(options.sizing),
                      .spins = cpus_suffice(devices_on(options.sizing.cpus))});
  return fabric ? Result<std::shared_ptr<Fabric>>(std::move(*fabric)) : fabric.error();
}

// Loads the model for one replica, whose events go through the gate. Each replica has as many
// devices of the sizing as its form.
Result<std::unique_ptr<CpuWorker>> create_worker(const ReplicaOptions& options, ReplicaId replica,
                                                 const std::shared_ptr<Fabric>& fabric,
                                                 const WeightSource& weights,
                                                 const std::shared_ptr<EventGate>& gate) {
  const Sizing& sizing = options.sizing;
  WorkerOptions worker{.form = sizing.form,
                       .devices = {},
                       .max_step_tokens = options.model.max_num_batched_tokens,
                       .max_positions = sizing.max_model_len,
                       .max_in_flight = static_cast<int>(stages_of(sizing.form).size()),
                       .moves_kv_early = options.model.group.overlaps_kv};
  const std::size_t devices = sizing.form.group.size();
  const auto first = static_cast<std::size_t>(replica.value) * devices;
  const auto shares = std::span(sizing.cpus).subspan(first, devices);
  worker.devices = devices_on(shares);
  if (options.turns != nullptr) {
    for (WorkerDevice& device : worker.devices) {
      device.turn = options.turns->add(device.where.cpus);
    }
  }
  if (fabric != nullptr) {
    worker.joining = Joining{fabric, static_cast<int>(first)};
  }
  if (options.morph) {
    worker.pages = sizing.budget;
    worker.most_pages = options.most_pages;
    worker.read_component = read_from(options.variants);
  }
  // Tries a seat once to warn if it is refused; threads that are refused one later do not log.
  for (const CpuShare& cpus : shares) {
    if (const Status taken = cpu::Seat(cpus.where.cpus, cpus.where.nodes).taken(); !taken.ok()) {
      log::warning("{}: the system places threads and memory", taken.error().message);
      break;
    }
  }
  const auto tell = [gate, replica](auto what) {
    gate->push({steady_now_ns(), std::move(what), replica});
  };
  worker.devices_failed = [tell](std::string why) { tell(DevicesFailed{std::move(why)}); };
  worker.await_turn = weights.hooks.await_turn;
  const LoadProgress progress = [bar = progress_bar("loading"), &told = weights.hooks.told](
                                    std::int64_t done, std::int64_t total) {
    bar(done, total);
    if (told) {
      told(done, total);
    }
  };
  return CpuWorker::create(worker, weights.checkpoint, progress,
                           [tell](StepResult result) { tell(StepDone{std::move(result)}); },
                           {.ready = [tell](MorphReady ready) { tell(std::move(ready)); },
                            .done = [tell](MorphDone done) { tell(done); }});
}

}  // namespace

// Called with the mutex held, of an open gate.
void EventGate::pass_on(Event event) {
  event.replica.value += first_;
  inbox_->push(std::move(event));
}

void EventGate::push(Event event) {
  {
    const std::shared_lock lock(mutex_);
    if (inbox_ != nullptr) {
      pass_on(std::move(event));
      return;
    }
  }
  const std::lock_guard lock(mutex_);
  if (inbox_ != nullptr) {  // meanwhile
    pass_on(std::move(event));
  } else if (!closed_) {
    kept_.push_back(std::move(event));
  }
}

void EventGate::open(Inbox& inbox, std::int32_t first) {
  const std::lock_guard lock(mutex_);
  inbox_ = &inbox;
  first_ = first;
  for (Event& event : std::exchange(kept_, {})) {
    pass_on(std::move(event));
  }
}

void EventGate::close() {
  const std::lock_guard lock(mutex_);
  inbox_ = nullptr;
  closed_ = true;
}

Workers::~Workers() {
  for (const auto& worker : workers_) {
    worker->close();
  }
  give_up_what_hangs();
  bool stopped = true;
  for (const auto& worker : workers_) {
    stopped = worker->stop() && stopped;
  }
  gate_->close();
  if (stopped && !stays_) {
    return;
  }
  for (auto& worker : workers_) {
    (void)worker.release();  // threads of a device that hangs may use any of them
  }
  if (memory_ != nullptr) {
    memory_->lose();
  }
}

// In each round, gives up those for which the others wait, until all that are left end.
void Workers::give_up_what_hangs() {
  std::vector<CpuWorker*> left;
  for (const auto& worker : workers_) {
    left.push_back(worker.get());
  }
  while (device_timeout_ns_ != 0) {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(device_timeout_ns_);
    std::erase_if(left, [&](auto* one) { return one->given_up() || one->ends_by(until); });
    if (left.empty()) {
      return;
    }
    const bool known =
        std::any_of(left.begin(), left.end(), [](auto* one) { return one->holds_up(); });
    for (CpuWorker* const worker : left) {
      if (!known || worker->holds_up()) {
        worker->give_up();
      }
    }
  }
}

void Workers::join(const std::vector<ReplicaId>& replicas) {
  std::vector<CpuWorker*> others;
  for (std::size_t i = 1; i < replicas.size(); ++i) {
    others.push_back(&at(replicas[i]));
  }
  at(replicas.front()).join(others);
}

std::int64_t Workers::backed_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& worker : workers_) {
    bytes += worker->backed_bytes();
  }
  return bytes;
}

std::vector<Member> Workers::members(const EngineConfig& engine, const Form& form) const {
  std::vector<Member> all;
  for (const auto& worker : workers_) {
    all.push_back({engine, worker.get(), device_timeout_ns_, form});
  }
  return all;
}

bool Workers::have_failed() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->given_up(); });
}

void Workers::copy(CopyId id, Workers& source, ReplicaId from, ReplicaId to,
                   const std::vector<BlockMove>& blocks) {
  at(to).copy_blocks(source.at(from), blocks, [gate = gate_, id, to] {
    gate->push({steady_now_ns(), BlocksCopied{id}, to});
  });
}

namespace {

// Returns the work of packing variants, which is null if no policy has layers swapped. Must be
// called before the weights are loaded, which then does not put them into the cache on the way.
BackgroundTask pack_in_background(const ReplicaOptions& options,
                                  const std::shared_ptr<EventGate>& gate) {
  if (!options.morph || options.morph->mode == MorphMode::kOff) {
    return nullptr;
  }
  const FormBounds& bounds = options.morph->bounds;
  return prepare_variants(
      {options.variants, order_of(bounds), bounds.ladder}, [gate](Packing packing) {
        VariantsPacked packed{std::make_shared<const Packing>(std::move(packing))};
        gate->push({steady_now_ns(), std::move(packed), {}});
      });
}

// Returns the options of a replica that starts with its present quota of traded memory.
// The weights always fit: a model keeps what its highest precision needs.
ReplicaOptions with_memory(ReplicaOptions options, const ModelMemory::Lease& memory) {
  MorphConfig& morph = *options.morph;
  FormBounds most = morph.bounds;
  most.budget.pages = memory.most_pages;
  morph.own_kv_blocks = options.sizing.largest_kv_blocks;
  options.sizing.largest_kv_blocks =
      std::max(options.sizing.largest_kv_blocks, form_path(most).back().kv.blocks);
  options.most_pages = memory.most_pages;
  morph.own_pages = memory.own_pages;
  morph.wishes_before = memory.wishes_before;
  options.sizing.budget.pages = morph.bounds.budget.pages = memory.pages;
  Form& form = options.sizing.form;
  form.kv.blocks = std::min(form.kv.blocks, kv_blocks_that_fit(morph.bounds, form));
  morph.start = form;
  return options;
}

}  // namespace

Result<LoadedWorkers> load_workers(const ReplicaOptions& asked, const WeightSource& weights) {
  const ModelSpec& spec = weights.checkpoint.spec();
  const auto gate = std::make_shared<EventGate>();
  LoadedWorkers loaded;
  if (asked.memory != nullptr) {
    loaded.memory = asked.memory->load([gate](WantQuota want) {
      gate->push({steady_now_ns(), want, ReplicaId{0}});
    });
  }
  const ReplicaOptions options = loaded.memory ? with_memory(asked, *loaded.memory) : asked;
  loaded.engine = engine_config(options, spec);
  loaded.form = options.sizing.form;
  const auto fabric = create_fabric(options, spec);
  if (!fabric.ok()) {
    return fabric.error();
  }
  if (options.variants != nullptr) {
    options.variants->keep_again();  // the disk may have room again
  }
  BackgroundTask packing = pack_in_background(options, gate);
  loaded.workers = std::make_unique<Workers>(gate, options.device_timeout_ns, loaded.memory.get());
  for (std::int32_t replica = 0; replica < options.sizing.replicas(); ++replica) {
    const ReplicaId id{replica};
    auto worker = create_worker(options_of(options, id), id, *fabric, weights, gate);
    if (!worker.ok()) {
      return worker.error();
    }
    loaded.workers->add(*std::move(worker));
  }
  if (packing) {
    loaded.workers->in_background(std::move(packing));
  }
  return loaded;
}

}  // namespace protean

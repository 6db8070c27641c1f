#include "replica/replica.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/cpu/seat.h"
#include "host/machine.h"
#include "replica/model_options.h"
#include "replica/variant_packing.h"
#include "terminal/progress.h"

namespace protean {

TimeNs steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

namespace {

std::chrono::steady_clock::time_point steady_time(TimeNs at_ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(at_ns));
}

// Returns the number of pipeline stages: each computes a step of its own.
int steps_in_flight(const Form& form) {
  return static_cast<int>(stages_of(form).size());
}

// Returns the time that a token more takes in a long step.
double token_us(const StepCost& cost, const StepPrecision& precision) {
  constexpr double kTokens = 512;
  return (predict_us(cost, {.tokens = 2 * kTokens}, precision) -
          predict_us(cost, {.tokens = kTokens}, precision)) /
         kTokens;
}

// Returns what makes the steps of a pipeline take about equal times: what the cost model says of
// the slowest stage, without what every step takes alike.
StepBalance balance_of(const ReplicaOptions& options, const ModelSpec& spec, const Form& form) {
  const std::string& by = options.model.microbatches;
  if (by == "tokens") {
    return {};
  }
  const StepPrecision& precision = options.sizing.step_precision;
  const StepCost& whole = options.cost.on(stages_of(form).front().devices.size());
  if (by == "released") {
    return {.least_tokens = efficient_tokens(whole, precision), .longest_first = true};
  }
  StepCost cost = cost_of(options.cost, spec, form);
  cost = token_us(cost, precision) > 0 ? cost : nominal_step_cost(spec);
  // Caches hold a part of the most KV that a step reads.
  const double most = static_cast<double>(form.kv.blocks * form.kv.block_tokens) /
                      static_cast<double>(stages_of(form).size());
  const double far = std::max(0.0, 1 - cost.near_kv_tokens / std::max(1.0, most));
  return {.per_token = token_us(cost, precision),
          .per_position = cost.context_token_us,
          .per_sequence = cost.sequence_us + cost.logits_at(precision.embeddings).row_us,
          .per_kv_token = cost.kv_token_us + far * cost.far_kv_token_us,
          .least_tokens = by == "lookahead" ? efficient_tokens(whole, precision) : 0};
}

}  // namespace

ReadComponent read_from(std::shared_ptr<VariantStore> variants) {
  return [variants = std::move(variants)](const ComponentVariant& which,
                                          std::span<std::byte> memory, const Pace& pace) {
    std::string remark;
    const Status read = variants->read(which, memory, pace, &remark);
    return read ? Result<std::string>(std::move(remark)) : read.error();
  };
}

bool may_trade_memory(const ReplicaOptions& options) {
  return options.morph && options.morph->mode != MorphMode::kOff &&
         options.morph->bounds.most_kv_blocks == 0 && options.sizing.replicas() == 1;
}

bool may_join(const ReplicaOptions& options) {
  return options.morph && options.sizing.joins;
}

EngineConfig engine_config(const ReplicaOptions& options, const ModelSpec& spec) {
  const ModelOptions& model = options.model;
  const Sizing& sizing = options.sizing;
  return {.scheduler = {.kv_blocks = sizing.form.kv.blocks,
                        .largest_kv_blocks = sizing.largest_kv_blocks,
                        .block_tokens = sizing.form.kv.block_tokens,
                        .max_num_seqs = model.max_num_seqs,
                        .max_num_batched_tokens = model.max_num_batched_tokens,
                        .max_model_len = sizing.max_model_len,
                        .prefix_caching = model.prefix_caching,
                        .steps_in_flight = steps_in_flight(sizing.form),
                        .balance = balance_of(options, spec, sizing.form)},
          .max_in_flight = steps_in_flight(sizing.form),
          .morph = options.morph,
          .step_cost = cost_of(options.cost, spec, sizing.form),
          .path_cost = path_cost_of(options.cost, spec, sizing.form),
          .step_precision = options.sizing.step_precision};
}

// The devices are as many, so the engine may have as many sequences and steps in flight.
EngineConfig wide_engine_config(const ReplicaOptions& options, const ModelSpec& spec,
                                const Form& form) {
  EngineConfig config = engine_config(options, spec);
  const auto replicas = static_cast<int>(form.group.size() / options.sizing.form.group.size());
  SchedulerConfig& scheduler = config.scheduler;
  scheduler.kv_blocks = form.kv.blocks;
  scheduler.max_num_seqs =
      std::min(scheduler.max_num_seqs * replicas, scheduler.max_num_batched_tokens);
  scheduler.steps_in_flight = config.max_in_flight = steps_in_flight(form);
  scheduler.balance = balance_of(options, spec, form);
  FormBounds& bounds = config.morph->bounds;
  config.morph->start = form;
  bounds.full = form;
  bounds.full.layer_precision = options.morph->bounds.full.layer_precision;
  bounds.full.embeddings = options.morph->bounds.full.embeddings;
  bounds.full.kv.blocks = std::max(form.kv.blocks, kv_blocks_beside(bounds, bounds.full));
  scheduler.largest_kv_blocks = form_path(bounds).back().kv.blocks;
  config.step_cost = cost_of(options.cost, spec, form);
  config.path_cost = path_cost_of(options.cost, spec, form);
  return config;
}

std::optional<GroupConfig> group_config(const ReplicaOptions& options, const ModelSpec& spec) {
  if (!may_join(options)) {
    return std::nullopt;
  }
  return GroupConfig{
      .spec = spec,
      .budget = options.sizing.budget,
      .form = options.sizing.form,
      .wide_engine = [options,
                      spec](const Form& form) { return wide_engine_config(options, spec, form); },
      .steps_at_once = options.holds_at_once,
      .scale = options.scale,
      .drop = options.drop,
      .scaler_after_ns = options.scaler_after_ns};
}

FingerprintOptions fingerprint_options(const ReplicaOptions& options) {
  const Form& form = options.sizing.form;
  FingerprintOptions wanted{.kv = form.kv,
                            .cpus = options.sizing.cpus.front(),
                            .max_model_len = options.sizing.max_model_len};
  wanted.page_bytes = options.morph ? page_bytes_of_pool(options.sizing.budget.page_bytes) : 0;
  const auto may_have = [&](Precision precision) {
    return layers_at(form, precision) > 0 ||
           (options.morph &&
            std::find(options.morph->bounds.ladder.begin(), options.morph->bounds.ladder.end(),
                      precision) != options.morph->bounds.ladder.end());
  };
  std::copy_if(kPrecisions.begin(), kPrecisions.end(), std::back_inserter(wanted.layers), may_have);
  return wanted;
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
                       .max_in_flight = steps_in_flight(sizing.form),
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
  worker.await_turn = weights.await_turn;
  return CpuWorker::create(worker, weights.checkpoint, progress_bar("loading"),
                           [tell](StepResult result) { tell(StepDone{std::move(result)}); },
                           {.ready = [tell](MorphReady ready) { tell(std::move(ready)); },
                            .done = [tell](MorphDone done) { tell(done); }});
}

}  // namespace

void EventGate::push(Event event) {
  const std::shared_lock lock(mutex_);
  if (inbox_ != nullptr) {
    inbox_->push(std::move(event));
  }
}

void EventGate::close() {
  const std::lock_guard lock(mutex_);
  inbox_ = nullptr;
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
  if (stopped) {
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

std::vector<Member> Workers::members(const EngineConfig& engine) const {
  std::vector<Member> all;
  for (const auto& worker : workers_) {
    all.push_back({engine, worker.get(), device_timeout_ns_});
  }
  return all;
}

void Workers::copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) {
  at(to).copy_blocks(at(from), blocks, [gate = gate_, id, to] {
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

}  // namespace

namespace {

// Returns the options of a replica that begins with the memory that it has of those which trade it.
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
  form.kv.blocks = std::min(form.kv.blocks, kv_blocks_beside(morph.bounds, form));
  morph.start = form;
  return options;
}

}  // namespace

Result<std::unique_ptr<Replicas>> Replicas::start(const ReplicaOptions& asked,
                                                  const WeightSource& weights, Inbox& inbox,
                                                  TokenSink& sink) {
  const ModelSpec& spec = weights.checkpoint.spec();
  const auto gate = std::make_shared<EventGate>(inbox);
  Parts parts;
  if (asked.memory != nullptr) {
    parts.memory = asked.memory->load([gate](WantQuota want) {
      gate->push({steady_now_ns(), want, ReplicaId{0}});
    });
  }
  const ReplicaOptions options = parts.memory ? with_memory(asked, *parts.memory) : asked;
  const auto fabric = create_fabric(options, spec);
  if (!fabric.ok()) {
    return fabric.error();
  }
  BackgroundTask packing = pack_in_background(options, gate);
  parts.workers = std::make_unique<Workers>(gate, options.device_timeout_ns, parts.memory.get());
  for (std::int32_t replica = 0; replica < options.sizing.replicas(); ++replica) {
    auto worker = create_worker(options, ReplicaId{replica}, *fabric, weights, gate);
    if (!worker.ok()) {
      return worker.error();
    }
    parts.workers->add(*std::move(worker));
  }
  if (packing) {
    parts.workers->in_background(std::move(packing));
  }
  return std::unique_ptr<Replicas>(new Replicas(options, spec, std::move(parts), inbox, sink));
}

namespace {

// Workers that share a fabric can become groups.
GroupConfig groups_of(const ReplicaOptions& options, const ModelSpec& spec, Workers& workers) {
  GroupConfig groups = group_config(options, spec).value_or(GroupConfig());
  groups.scaler_after_ns = options.scaler_after_ns;
  groups.devices = may_join(options) ? &workers : nullptr;
  if (spec.parallel_halves) {
    groups.why_not = "replicas of a model whose attention and MLP compute in parallel do not join";
  }
  return groups;
}

}  // namespace

Replicas::Replicas(const ReplicaOptions& options, const ModelSpec& spec, Parts parts, Inbox& inbox,
                   TokenSink& sink)
    : inbox_(inbox),
      sink_(sink),
      parts_(std::move(parts)),
      fleet_({options.router, options.migrate},
             parts_.workers->members(engine_config(options, spec)), *this, parts_.workers.get(),
             groups_of(options, spec, *parts_.workers)) {
  thread_ = std::thread([this] { run(); });
}

Replicas::~Replicas() {
  inbox_.close();
  thread_.join();
}

// Passes outputs on, tells other models what this one needs, and lets the devices of a replica
// without requests rest. A step that it starts for new ones ends that.
void Replicas::emit(OutputBatch batch) {
  const Observation& seen = batch.observation;
  if (seen.running + seen.waiting == 0) {
    parts_.workers->rest(batch.replica);
  }
  const bool failed = batch.groups != nullptr && !batch.groups->failed.empty();
  const std::optional<MemoryUse> memory = batch.memory;
  const TimeNs at_ns = batch.at_ns;
  sink_.emit(std::move(batch));
  if (failed && parts_.memory != nullptr) {
    parts_.memory->fail();
  } else if (memory && parts_.memory != nullptr) {
    parts_.memory->report(*memory, at_ns);
  }
}

void Replicas::run() {
  fleet_.begin(steady_now_ns());
  while (true) {
    const auto deadline_ns = fleet_.next_deadline_ns();
    if (deadline_ns && !inbox_.wait_until(steady_time(*deadline_ns))) {
      fleet_.handle({steady_now_ns(), Tick{}});
      continue;
    }
    std::vector<Event> events = inbox_.pop_all();
    if (events.empty()) {
      return;
    }
    for (Event& event : events) {
      fleet_.handle(std::move(event));
    }
    // While one replica's events keep the inbox full, another one's deadlines still hold.
    const auto due_ns = fleet_.next_deadline_ns();
    if (due_ns && *due_ns <= steady_now_ns()) {
      fleet_.handle({steady_now_ns(), Tick{}});
    }
  }
}

}  // namespace protean

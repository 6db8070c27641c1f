#include "replica/replica.h"

#include <chrono>
#include <utility>

#include "replica/one_replica.h"

namespace protean {
namespace {

std::chrono::steady_clock::time_point steady_time(TimeNs at_ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(at_ns));
}

}  // namespace

Result<std::unique_ptr<Replicas>> Replicas::start(const ReplicaOptions& options,
                                                  const WeightSource& weights, Inbox& inbox,
                                                  TokenSink& sink) {
  auto loaded = load_workers(options, weights);
  if (!loaded.ok()) {
    return loaded.error();
  }
  return std::unique_ptr<Replicas>(
      new Replicas(options, weights.checkpoint.spec(), *std::move(loaded), inbox, sink));
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

Replicas::Replicas(const ReplicaOptions& options, const ModelSpec& spec, LoadedWorkers loaded,
                   Inbox& inbox, TokenSink& sink)
    : inbox_(inbox),
      sink_(sink),
      replicas_(options.sizing.replicas()),
      numbers_(replicas_),
      serving_(std::move(loaded)),
      fleet_({options.router, options.migrate},
             with_own_engines(serving_.workers->members(serving_.engine, serving_.form), options,
                              spec),
             *this, this, groups_of(options, spec, *serving_.workers)) {
  serving_.workers->tell(inbox_, serving_.first);
  thread_ = std::thread([this] { run(); });
}

Replicas::~Replicas() {
  if (thread_.joinable()) {
    (void)end();
  }
}

std::vector<HeldRequest> Replicas::end() {
  inbox_.close();
  if (thread_.joinable()) {
    thread_.join();
  }
  return fleet_.take_held();
}

// Passes outputs on, tells other models what this one needs, and lets the devices of a replica
// without requests rest. A step that it starts for new ones ends that.
void Replicas::emit(OutputBatch batch) {
  const Observation& seen = batch.observation;
  if (seen.running + seen.waiting == 0) {
    serving_.workers->rest(batch.replica);
  }
  const bool failed = batch.groups != nullptr && !batch.groups->failed.empty();
  const std::optional<MemoryUse> memory = batch.memory;
  const TimeNs at_ns = batch.at_ns;
  sink_.emit(std::move(batch));
  if (failed && serving_.memory != nullptr) {
    serving_.memory->fail();
  } else if (memory && serving_.memory != nullptr) {
    serving_.memory->report(*memory, at_ns);
  }
}

void Replicas::run() {
  fleet_.begin(steady_now_ns());
  while (true) {
    const auto deadline_ns = fleet_.next_deadline_ns();
    if (deadline_ns && !inbox_.wait_until(steady_time(*deadline_ns))) {
      handle({steady_now_ns(), Tick{}});
      continue;
    }
    std::vector<Event> events = inbox_.pop_all();
    if (events.empty()) {
      return;
    }
    take_asked();
    for (Event& event : events) {
      handle(std::move(event));
    }
    // While one replica's events keep the inbox full, another one's deadlines still hold.
    const auto due_ns = fleet_.next_deadline_ns();
    if (due_ns && *due_ns <= steady_now_ns()) {
      handle({steady_now_ns(), Tick{}});
    }
  }
}

}  // namespace protean

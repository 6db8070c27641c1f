#include "replica/replica.h"

#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/cpu/seat.h"
#include "host/machine.h"
#include "replica/model_options.h"
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

// Each stage of a pipeline computes a step of its own.
int steps_in_flight(const Form& form) {
  return static_cast<int>(stages_of(form).size());
}

// Returns what tokens and positions cost in multiply-adds of a layer: what makes the steps of a
// pipeline take about equal times.
StepBalance balance_of(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  const double q = static_cast<double>(attention.heads) * attention.head_dim;
  const double kv = static_cast<double>(attention.kv_heads) * attention.head_dim;
  return {.per_token = spec.hidden * (2 * q + 2 * kv + 3.0 * spec.ffn), .per_position = 2 * q};
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

std::function<bool(const Pace& pace)> read_ahead_of(std::shared_ptr<const VariantStore> variants,
                                                    std::vector<SwapTarget> order,
                                                    Precision precision) {
  return [variants = std::move(variants), order = std::move(order), precision,
          next = std::size_t{0}](const Pace& pace) mutable {
    const bool has_room = free_memory_bytes() >= 2 * variants->bytes_at(precision);
    return has_room && variants->read_ahead(order, precision, next, pace);
  };
}

Result<std::unique_ptr<Replica>> Replica::start(const ReplicaOptions& options,
                                                const Checkpoint& checkpoint, Inbox& inbox,
                                                TokenSink& sink) {
  const ModelOptions& model = options.model;
  const Sizing& sizing = options.sizing;
  WorkerOptions worker_options{.form = sizing.form,
                               .devices = {},
                               .max_step_tokens = model.max_num_batched_tokens,
                               .max_positions = sizing.max_model_len,
                               .max_in_flight = steps_in_flight(sizing.form)};
  for (const CpuShare& cpus : sizing.cpus) {
    worker_options.devices.push_back({cpus.threads, cpus.where});
  }
  if (options.morph) {
    worker_options.pages = sizing.budget;
    worker_options.read_component = read_from(options.variants);
    const FormBounds& bounds = options.morph->bounds;
    if (options.morph->mode != MorphMode::kOff && bounds.ladder.size() > 1) {
      worker_options.read_ahead =
          read_ahead_of(options.variants, order_of(bounds), bounds.ladder[1]);
    }
  }
  // Tries a seat once to warn if it is refused; threads that are refused one later do not log.
  for (const CpuShare& cpus : sizing.cpus) {
    if (const Status taken = cpu::Seat(cpus.where.cpus, cpus.where.nodes).taken(); !taken.ok()) {
      log::warning("{}: the system places threads and memory", taken.error().message);
      break;
    }
  }
  const auto tell = [&inbox](auto what) { inbox.push({steady_now_ns(), std::move(what)}); };
  auto worker = CpuWorker::create(worker_options, checkpoint, progress_bar("loading"),
                                  [tell](StepResult result) { tell(StepDone{std::move(result)}); },
                                  {.ready = [tell](MorphReady ready) { tell(std::move(ready)); },
                                   .done = [tell](MorphDone done) { tell(done); }});
  if (!worker.ok()) {
    return worker.error();
  }
  const EngineConfig config{.scheduler = {.kv_blocks = sizing.form.kv.blocks,
                                          .largest_kv_blocks = sizing.largest_kv_blocks,
                                          .block_tokens = sizing.form.kv.block_tokens,
                                          .max_num_seqs = model.max_num_seqs,
                                          .max_num_batched_tokens = model.max_num_batched_tokens,
                                          .max_model_len = sizing.max_model_len,
                                          .prefix_caching = model.prefix_caching,
                                          .steps_in_flight = steps_in_flight(sizing.form),
                                          .balance = balance_of(checkpoint.spec())},
                            .max_in_flight = steps_in_flight(sizing.form),
                            .morph = options.morph};
  return std::unique_ptr<Replica>(new Replica(config, *std::move(worker), inbox, sink));
}

Replica::Replica(const EngineConfig& config, std::unique_ptr<CpuWorker> worker, Inbox& inbox,
                 TokenSink& sink)
    : inbox_(inbox), worker_(std::move(worker)), engine_(config, *worker_, sink) {
  thread_ = std::thread([this] { run(); });
}

Replica::~Replica() {
  inbox_.close();
  thread_.join();
}

void Replica::run() {
  engine_.handle({steady_now_ns(), Tick{}});  // tells the sink how the replica begins
  while (true) {
    const auto deadline_ns = engine_.next_deadline_ns();
    if (deadline_ns && !inbox_.wait_until(steady_time(*deadline_ns))) {
      engine_.handle({steady_now_ns(), Tick{}});
      continue;
    }
    std::vector<Event> events = inbox_.pop_all();
    if (events.empty()) {
      return;
    }
    for (Event& event : events) {
      engine_.handle(std::move(event));
    }
  }
}

}  // namespace protean

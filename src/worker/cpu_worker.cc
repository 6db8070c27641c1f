#include "worker/cpu_worker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"
#include "base/units.h"

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

// Touches all pages, so that a budget beyond the system's memory fails now rather than under load,
// and no swap waits for the kernel to provide pages.
Status back_all(cpu::PagePool& pool) {
  Result<cpu::PageRange> all = cpu::PageRange::reserve(pool, pool.pages());
  return all ? all->attach(pool.pages()) : all.error();
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
  Result<Built> built = build(options, checkpoint, progress);
  if (!built) {
    return built.error();
  }
  return std::unique_ptr<CpuWorker>(
      new CpuWorker(*std::move(built), std::move(done), complete(std::move(morph_handlers))));
}

Result<CpuWorker::Built> CpuWorker::build(const WorkerOptions& options,
                                          const Checkpoint& checkpoint,
                                          const LoadProgress& progress) {
  // Places the memory touched while loading near the threads that compute. It applies to this
  // thread until the end of the function.
  const cpu::Seat loading({}, options.where.nodes);
  Result<Pages> pages = make_pages(options, checkpoint.spec());
  if (!pages) {
    return pages.error();
  }
  Result<std::unique_ptr<Rank>> rank =
      Rank::create(options, checkpoint, progress, {pages->pool.get(), pages->kv});
  if (!rank) {
    return rank.error();
  }
  return Built{std::move(*pages), std::move(*rank), checkpoint.spec(), options};
}

Result<CpuWorker::Pages> CpuWorker::make_pages(const WorkerOptions& options,
                                               const ModelSpec& spec) {
  if (!options.pages) {
    return Pages();
  }
  const PageBudget& budget = *options.pages;
  Result<std::unique_ptr<cpu::PagePool>> pool =
      cpu::PagePool::create(budget.page_bytes, budget.pages, options.where.nodes);
  if (!pool) {
    return pool.error();
  }
  const std::int64_t weights = weight_pages(spec, options.form, budget.page_bytes);
  const std::int64_t kv = kv_pages(spec, options.form.kv, budget.page_bytes);
  if (weights + kv > budget.pages) {
    return make_error(ErrorCode::kExhausted,
                      "layers need {} and {} KV blocks {} of the {} that there are: ask for fewer "
                      "blocks, a lower precision, or give more memory",
                      format_bytes(weights * budget.page_bytes), options.form.kv.blocks,
                      format_bytes(kv * budget.page_bytes),
                      format_bytes(budget.pages * budget.page_bytes));
  }
  if (const Status backed = back_all(**pool); !backed) {
    return backed.error();
  }
  Result<std::unique_ptr<KvStore>> store = KvStore::create(spec, options.form.kv, **pool);
  if (!store) {
    return store.error();
  }
  return Pages{std::move(*pool), std::move(*store)};
}

CpuWorker::CpuWorker(Built built, StepDoneHandler done, MorphHandlers morph_handlers)
    : pages_(std::move(built.pages)),
      rank_(std::move(built.rank)),
      done_(std::move(done)),
      morph_handlers_(std::move(morph_handlers)),
      memory_(rank_->memory()),
      read_ahead_(std::move(built.options.read_ahead)),
      background_(std::min(1.0, built.options.background_share * built.options.threads)),
      swapper_({pages_.pool.get(), &background_, std::move(built.spec),
                built.options.form.largest_tp_degree, std::move(built.options.read_component),
                morph_handlers_}),
      resizer_({pages_.pool.get(), &background_, pages_.kv.get(), morph_handlers_}),
      entries_(1),  // a least size; the engine bounds its steps in flight
      thread_([this] { run_entries(); }) {
  if (read_ahead_) {
    background_.post([this] { read_ahead(); });
  }
}

void CpuWorker::stop() {
  if (thread_.joinable()) {
    entries_.close();
    thread_.join();
    background_.stop();
  }
}

CpuWorker::~CpuWorker() {
  stop();
}

// Reads one piece and posts the rest, so that other tasks run between two pieces.
void CpuWorker::read_ahead() {
  const bool more = read_ahead_([this](std::int64_t) { return background_.has_time(); });
  if (more && background_.may_go_on()) {
    background_.post([this] { read_ahead(); });
  }
}

void CpuWorker::start(StepPlan plan) {
  entries_.push(std::move(plan));
}

void CpuWorker::prepare(MorphId id, const MorphStep& step) {
  if (pages_.pool == nullptr) {
    entries_.push(Refuse{{id, make_error(ErrorCode::kUnsupported,
                                         "{}: this worker's memory is for life: start with a "
                                         "memory budget to let its form change",
                                         to_string(step))}});
    return;
  }
  std::visit(Overloaded{[&](const SwapComponent& swap) { swapper_.prepare(id, swap); },
                        [&](const ResizeKv& resize) { resizer_.prepare(id, resize); }},
             step);
}

void CpuWorker::commit(MorphId id) {
  entries_.push(id);
}

void CpuWorker::abort(MorphId id) {
  swapper_.abort(id);
  resizer_.abort(id);
}

void CpuWorker::move_blocks(std::vector<BlockMove> moves) {
  entries_.push(std::move(moves));
}

void CpuWorker::copy_blocks(const CpuWorker& source, std::vector<BlockMove> moves,
                            std::function<void()> done) {
  entries_.push(Copy{source.rank_.get(), std::move(moves), std::move(done)});
}

void CpuWorker::run_entries() {
  const cpu::Seat seat = rank_->take_seat();
  for (;;) {
    const std::vector<Entry> entries = entries_.pop_all();
    if (entries.empty()) {
      return;  // closed and drained
    }
    for (const Entry& entry : entries) {
      std::visit([this](const auto& what) { run(what); }, entry);
    }
  }
}

void CpuWorker::run(const StepPlan& plan) {
  background_.step_begins();
  StepResult result = rank_->run(plan);
  background_.step_ends();
  done_(std::move(result));
}

void CpuWorker::run(MorphId commit) {
  if (std::optional<LayerSwapper::Filled> filled = swapper_.take(commit)) {
    rank_->swap_component(filled->step, filled->pages);
    swapper_.give_back(commit, std::move(filled->pages));
  } else {
    check(resizer_.commit(commit), "what is committed was prepared and not aborted");
  }
}

void CpuWorker::run(const std::vector<BlockMove>& moves) {
  rank_->copy_blocks(*rank_, moves);
}

void CpuWorker::run(const Copy& copy) {
  rank_->copy_blocks(*copy.source, copy.moves);
  copy.done();
}

void CpuWorker::run(const Refuse& refuse) {
  morph_handlers_.ready(refuse.answer);
}

}  // namespace protean

#include "worker/device_worker.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"
#include "base/units.h"
#include "worker/load_turns.h"

namespace protean {
namespace {

constexpr std::chrono::seconds kToWakeUp(1);  // for a device that was given up

// Touches all pages, so that a budget beyond the system's memory fails now rather than under load,
// and no swap waits for the kernel to provide pages.
Status back_all(cpu::PagePool& pool, const cpu::MayGoOn& may_go_on) {
  Result<cpu::PageRange> all = cpu::PageRange::reserve(pool, pool.pages());
  return all ? all->attach(pool.pages(), may_go_on) : all.error();
}

const WorkerDevice& device_of(const WorkerOptions& options, RankPlace place) {
  return options.devices[static_cast<std::size_t>(place.device)];
}

}  // namespace

Result<std::unique_ptr<DeviceWorker>> DeviceWorker::create(const WorkerOptions& options,
                                                           const Checkpoint& checkpoint,
                                                           const LoadProgress& progress,
                                                           RankPlace place, Handlers handlers) {
  // Places the memory touched while loading near the threads that compute. It applies to this
  // thread until the end of the function.
  const cpu::Seat loading({}, device_of(options, place).where.nodes);
  Result<Pages> pages = load_in_turns(options.await_turn, [&](const cpu::MayGoOn& may_go_on) {
    return make_pages(options, checkpoint.spec(), place, may_go_on);
  });
  if (!pages) {
    return pages.error();
  }
  Result<std::unique_ptr<Rank>> rank =
      Rank::create(options, checkpoint, progress, {pages->pool.get(), pages->kv}, place);
  if (!rank) {
    return rank.error();
  }
  return std::unique_ptr<DeviceWorker>(
      new DeviceWorker({std::move(*pages), std::move(*rank), checkpoint.spec(), options, place},
                       std::move(handlers)));
}

Result<DeviceWorker::Pages> DeviceWorker::make_pages(const WorkerOptions& options,
                                                     const ModelSpec& spec, RankPlace place,
                                                     const cpu::MayGoOn& may_go_on) {
  if (!options.pages) {
    return Pages();
  }
  const PageBudget& budget = *options.pages;
  const Holding& holding = options.form.group[static_cast<std::size_t>(place.device)];
  const std::int64_t pages = budget.pages - holding.lacking_pages;
  const std::int64_t weights =
      weight_pages_on(spec, options.form, place.device, budget.page_bytes) - holding.lacking_pages;
  const std::int64_t kv = kv_pages_on(spec, options.form, place.device, budget.page_bytes);
  if (weights + kv > pages) {
    return make_error(ErrorCode::kExhausted,
                      "layers need {} and {} KV blocks {} of the {} that there are: ask for fewer "
                      "blocks, a lower precision, or give more memory",
                      format_bytes(weights * budget.page_bytes), options.form.kv.blocks,
                      format_bytes(kv * budget.page_bytes),
                      format_bytes(pages * budget.page_bytes));
  }
  Result<std::unique_ptr<cpu::PagePool>> pool = cpu::PagePool::create(
      budget.page_bytes, std::max(budget.pages, options.most_pages) - holding.lacking_pages,
      device_of(options, place).where.nodes);
  if (!pool) {
    return pool.error();
  }
  if (const Status set = (*pool)->set_quota(pages); !set) {
    return set.error();
  }
  if (const Status backed = back_all(**pool, may_go_on); !backed) {
    return backed.error();
  }
  Result<std::unique_ptr<KvStore>> store =
      KvStore::create({spec, holding, options.form.shards, options.form.kv}, **pool);
  if (!store) {
    return store.error();
  }
  return Pages{std::move(*pool), std::move(*store)};
}

namespace {

// Returns true if the end of the entry is reported by MorphHandlers::done.
bool commits(const DeviceEntry& entry) {
  const auto* const change = std::get_if<DeviceChange>(&entry);
  return std::holds_alternative<MorphId>(entry) ||
         (change != nullptr && change->change->hold.has_value());
}

bool changes_homes(const DeviceEntry& entry) {
  const auto* const change = std::get_if<DeviceChange>(&entry);
  return change != nullptr && change->change->kv != GroupChange::Kv::kStays;
}

}  // namespace

// Counts commits that end, and reports nothing of a device that was given up.
DeviceWorker::Handlers DeviceWorker::watched(Handlers handlers) {
  handlers.morph.ready = [this, ready = std::move(handlers.morph.ready)](MorphReady what) {
    if (!given_up_) {
      ready(std::move(what));
    }
  };
  handlers.morph.done = [this, done = std::move(handlers.morph.done)](MorphDone what) {
    --unfinished_;
    if (!given_up_) {
      done(what);
    }
  };
  return handlers;
}

DeviceWorker::DeviceWorker(Built built, Handlers handlers)
    : pages_(std::move(built.pages)),
      rank_(std::move(built.rank)),
      handlers_(watched(std::move(handlers))),
      memory_(rank_->memory()),
      place_(built.place),
      turn_(device_of(built.options, built.place).turn),
      background_(std::min(
          1.0, built.options.background_share * device_of(built.options, built.place).threads)),
      swapper_({pages_.pool.get(), &background_, std::move(built.spec), built.options.form.shards,
                std::move(built.options.read_component), pages_.kv.get(), handlers_.morph}),
      resizer_({pages_.pool.get(), &background_, pages_.kv.get(), handlers_.morph}),
      entries_(1),  // a least size; the engine bounds its steps in flight
      thread_([this] {
        rank_->set_background(background_);
        if (place_.fabric != nullptr) {
          place_.fabric->progress().guard(place_.on_fabric, [this] { return sound(); });
        }
        run_entries();
      }) {}

DeviceWorker::~DeviceWorker() {
  check(finish(), "a device that hangs is not destroyed");
}

bool DeviceWorker::ends_by(std::chrono::steady_clock::time_point until) {
  const auto soon = std::chrono::steady_clock::now() + kToWakeUp;
  if (!thread_.joinable()) {
    return background_.ends_by(given_up_ ? std::min(soon, until) : until);
  }
  if (place_.fabric != nullptr && (given_up_ || has_lost_memory())) {
    place_.fabric->progress().let_go(place_.on_fabric);
  }
  if (!thread_ends_.try_acquire_until(given_up_ ? std::min(soon, until) : until)) {
    return false;
  }
  thread_.join();
  return background_.ends_by(given_up_ ? std::min(soon, until) : until);
}

void DeviceWorker::close() {
  entries_.close();
  if (turn_ != nullptr) {
    turn_->let_go();
  }
}

void DeviceWorker::rest() {
  if (turn_ != nullptr) {
    turn_->rest();
  }
}

bool DeviceWorker::finish() {
  close();
  while (!ends_by(std::chrono::steady_clock::now() + kToWakeUp)) {
    if (given_up_) {
      background_.begin_stop();
      return false;
    }
  }
  return true;
}

void DeviceWorker::push(DeviceEntry entry) {
  if (!given_up_) {
    ++unfinished_;
    layout_changes_ += std::holds_alternative<DeviceChange>(entry) ? 1 : 0;
    if (changes_homes(entry)) {
      const std::lock_guard lock(resizes_mutex_);
      ++home_changes_;
    }
    if (turn_ != nullptr && std::holds_alternative<GroupStep>(entry)) {
      turn_->want();
    }
    entries_.push(std::move(entry));
  }
}

void DeviceWorker::prepare(MorphId id, WantedWeights wanted) {
  if (!given_up_) {
    swapper_.prepare(id, std::move(wanted));
  }
}

void DeviceWorker::prepare(MorphId id, const ResizeKv& resize) {
  if (given_up_) {
    return;
  }
  {
    const std::lock_guard lock(resizes_mutex_);
    if (home_changes_ == 0) {
      resizer_.prepare(id, resize);
      return;
    }
    waiting_resizes_.insert(id);
  }
  push(PrepareResize{id, resize});
}

bool DeviceWorker::sound() {
  if (!has_lost_memory()) {
    return true;
  }
  // Another thread that finds the same waits here, so that nothing is told before the loss is.
  std::call_once(tells_loss_,
                 [this] { handlers_.failed("has lost memory: an access to its pages failed"); });
  return false;
}

bool DeviceWorker::holds_up() const {
  const bool waits = place_.fabric != nullptr && place_.fabric->progress().waits(place_.on_fabric);
  return unfinished_ > 0 && !waits;
}

std::optional<std::uint64_t> DeviceWorker::pieces_prepared() {
  return swapper_.prepares() || resizer_.prepares() ? background_.pieces() : std::nullopt;
}

void DeviceWorker::give_up() {
  given_up_ = true;
  swapper_.give_up();
  if (turn_ != nullptr) {
    turn_->let_go();
  }
  if (place_.fabric != nullptr) {
    place_.fabric->progress().fail(place_.on_fabric);
  }
}

// Does one piece and posts the rest, so that other tasks run between two pieces.
void DeviceWorker::in_background(std::shared_ptr<BackgroundTask> work) {
  background_.post([this, work = std::move(work)] {
    const bool more = (*work)([this](std::int64_t) { return background_.has_time(); });
    if (more && background_.may_go_on()) {
      in_background(work);
    }
  });
}

void DeviceWorker::move_early(std::shared_ptr<KvShare> share) {
  background_.post([this, share = std::move(share)] {
    while (!given_up_) {
      const std::optional<std::int64_t> bytes = share->run_one();
      if (!bytes) {
        break;
      }
      kv_bytes_moved_early_ += *bytes;
      if (!background_.may_go_on()) {
        break;
      }
    }
  });
}

void DeviceWorker::abort(MorphId id) {
  if (given_up_) {
    return;
  }
  swapper_.abort(id);
  const std::lock_guard lock(resizes_mutex_);
  if (waiting_resizes_.erase(id) == 0) {
    resizer_.abort(id);
  }
}

void DeviceWorker::run_entries() {
  (void)pthread_setname_np(pthread_self(), "device");  // for those who look at the process
  const cpu::Seat seat = rank_->take_seat();
  for (;;) {
    const std::vector<DeviceEntry> entries = entries_.pop_all();
    if (entries.empty()) {
      break;  // closed and drained
    }
    for (const DeviceEntry& entry : entries) {
      if (!given_up_) {
        std::visit([this](const auto& what) { run(what); }, entry);
      }
      unfinished_ -= commits(entry) ? 0 : 1;
    }
  }
  thread_ends_.release();
}

void DeviceWorker::run(const GroupStep& step) {
  const auto waited_ns = [this] {
    Fabric* const fabric = place_.fabric;
    return fabric == nullptr ? 0 : fabric->progress().waited_ns(place_.on_fabric);
  };
  // While the device waits for its turn, other models compute on its CPUs, and copies keep to their
  // share.
  background_.step_begins();
  if (turn_ != nullptr) {
    turn_->begin();
  }
  const TimeNs begun_ns = UseMeter::now_ns();
  const TimeNs waited_before_ns = waited_ns();
  std::vector<HomeResult> results;
  if (!given_up_) {  // meanwhile
    results = rank_->run(step.number, *step.plans);
  }
  const TimeNs waits_ns = waited_ns() - waited_before_ns;
  if (turn_ != nullptr && !given_up_) {
    turn_->end(waits_ns);
  }
  background_.step_ends();
  if (step.meter) {
    step.meter->computed(UseMeter::now_ns() - begun_ns - waits_ns);
  }
  for (HomeResult& result : results) {
    if (!given_up_ && sound()) {
      step.done(std::move(result));
    }
  }
}

void DeviceWorker::run(MorphId commit) {
  if (std::optional<LayerSwapper::Filled> filled = swapper_.take(commit)) {
    rank_->swap_component(filled->wanted.component, filled->memory);
    swapper_.give_back(commit, std::move(filled->memory), std::nullopt);
  } else {
    check(resizer_.commit(commit), "what is committed was prepared and not aborted");
  }
}

// Waits until the background thread has done what it was given, such as ending what was aborted.
// Once the device is given up, that thread may have ended.
void DeviceWorker::settle_background() {
  std::binary_semaphore settled(0);
  if (background_.post([&] { settled.release(); })) {
    settled.acquire();
  }
}

void DeviceWorker::run(const DeviceChange& entry) {
  const GroupChange& change = *entry.change;
  ShardMemory memory;
  if (change.kv != GroupChange::Kv::kStays) {
    settle_background();  // it reads how many blocks and homes the arrays have
  }
  if (!change.hold) {
    rank_->change(change, entry.device, memory);
    --layout_changes_;
    if (change.kv != GroupChange::Kv::kStays) {
      const std::lock_guard lock(resizes_mutex_);
      --home_changes_;
    }
    return;
  }
  std::optional<LayerSwapper::Filled> filled = swapper_.take(change.hold->id);
  check(filled.has_value(), "what is committed was prepared and not aborted");
  memory = std::move(filled->memory);
  rank_->change(change, entry.device, memory);
  --layout_changes_;  // before the end is told
  const HoldShards& step = change.hold->step;
  const bool attention = step.component == Component::kAttention;
  swapper_.give_back(change.hold->id, std::move(memory),
                     attention ? std::optional(step.layer) : std::nullopt);
}

void DeviceWorker::run(const PrepareResize& entry) {
  const std::lock_guard lock(resizes_mutex_);
  if (waiting_resizes_.erase(entry.id) != 0) {
    resizer_.prepare(entry.id, entry.resize);
  }
}

void DeviceWorker::run(const std::vector<BlockMove>& moves) {
  const KvStore& kv = rank_->kv();
  rank_->copy_blocks(kv.layout(), kv.own_heads(), moves, [this] { return given_up_.load(); });
}

// A source may write blocks that are still read here when the copy is called off: what was read by
// then is never used.
void DeviceWorker::run(const KvCopy& copy) {
  const auto called_off = [&] {
    return given_up_ || std::any_of(copy.groups.begin(), copy.groups.end(), [this](int device) {
             return place_.fabric->progress().failed(device);
           });
  };
  bool all_sound = true;
  for (const KvCopy::Source& source : copy.sources) {
    rank_->copy_blocks(*source.layout, source.heads, copy.moves, called_off);
    all_sound = source.device->sound() && all_sound;
  }
  all_sound = sound() && all_sound;
  if (all_sound && !called_off()) {
    copy.done();
  }
}

}  // namespace protean

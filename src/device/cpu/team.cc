#include "device/cpu/team.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "hwy/cache_control.h"

namespace protean::cpu {
namespace {

// About 10 to 50 us: longer than the gap between two kernels of a step, but short enough not to
// take a shared core from a thread that has work.
constexpr int kSpinsBeforeSleep = 1000;
constexpr std::uint64_t kLeftBits = 32;
constexpr std::uint64_t kLeftMask = (std::uint64_t{1} << kLeftBits) - 1;

using Task = std::function<void(std::int64_t, int)>;

}  // namespace

// Threads claim the indices of a batch through one word, `ticket`: its upper half is the batch's
// generation, its lower half the number of indices left. A thread takes an index by
// compare-and-swap on the whole word, so a thread that wakes up late cannot take an index of a
// newer batch. `task` and `tasks` are written between batches, and read only by threads that hold
// an index, which the end of the batch waits for.
struct Team::State {
  State(int team_threads, Locality team_place) : size(team_threads), where(std::move(team_place)) {}

  const int size;  // number of threads, including the owner
  const Locality where;
  alignas(64) std::atomic<std::uint64_t> ticket{0};
  const Task* task = nullptr;
  std::int64_t tasks = 0;
  alignas(64) std::atomic<std::int64_t> done{0};
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<bool> owner_sleeps{false};
  std::atomic<bool> stopping{false};
  bool owner_works = false;  // used by the owner only
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable work_done;
  std::vector<std::thread> threads;

  std::uint64_t generation() const { return ticket.load() >> kLeftBits; }

  // Runs tasks until all indices of the batch are taken.
  void claim(std::uint64_t batch, int thread) noexcept {
    std::uint64_t seen = ticket.load();
    while (seen >> kLeftBits == batch && (seen & kLeftMask) != 0) {
      if (!ticket.compare_exchange_weak(seen, seen - 1)) {
        continue;
      }
      const std::int64_t count = tasks;
      (*task)(count - static_cast<std::int64_t>(seen & kLeftMask), thread);
      // After the addition the owner may return and open another batch.
      if (done.fetch_add(1) + 1 == count && owner_sleeps.load()) {
        { const std::lock_guard lock(mutex); }
        work_done.notify_one();
      }
      seen = ticket.load();
    }
  }

  // Returns false if the team is being destroyed.
  bool wait_for_batch_after(std::uint64_t seen) {
    const auto ready = [&] { return generation() != seen || stopping.load(); };
    for (int spin = 0; spin < kSpinsBeforeSleep && !ready(); ++spin) {
      hwy::Pause();
    }
    if (!ready()) {
      std::unique_lock lock(mutex);
      sleepers.fetch_add(
          1);  // before wait() checks ready(): the owner or this thread sees the other
      work_ready.wait(lock, ready);
      sleepers.fetch_sub(1);
    }
    return !stopping.load();
  }

  Seat seat_of(int thread) const {
    const std::span<const int> cpus = where.cpus;
    return {where.pinned ? cpus.subspan(static_cast<std::size_t>(thread), 1) : cpus, where.nodes};
  }

  void work(int thread) {
    const Seat seat = seat_of(thread);
    std::uint64_t seen = 0;
    while (wait_for_batch_after(seen)) {
      seen = generation();
      claim(seen, thread);
    }
  }

  void open_batch(std::int64_t count, const Task& run) {
    done.store(0);
    task = &run;
    tasks = count;
    ticket.store((generation() + 1) << kLeftBits | static_cast<std::uint64_t>(count));
    if (sleepers.load() > 0) {
      { const std::lock_guard lock(mutex); }
      work_ready.notify_all();
    }
  }

  void wait_until_done(std::int64_t count) {
    const auto ready = [&] { return done.load() == count; };
    for (int spin = 0; spin < kSpinsBeforeSleep && !ready(); ++spin) {
      hwy::Pause();
    }
    if (!ready()) {
      std::unique_lock lock(mutex);
      owner_sleeps.store(true);
      work_done.wait(lock, ready);
      owner_sleeps.store(false);
    }
  }

  // Returns the number of the calling thread if it is inside a task of this team, else -1.
  int working_thread() const {
    for (std::size_t i = 0; i < threads.size(); ++i) {
      if (threads[i].get_id() == std::this_thread::get_id()) {
        return static_cast<int>(i) + 1;
      }
    }
    return owner_works ? 0 : -1;
  }
};

Team::Team(int threads, Locality where)
    : state_(std::make_unique<State>(threads, std::move(where))) {
  check(threads >= 1, "a team has at least the owner's thread");
  check(!state_->where.pinned || std::ssize(state_->where.cpus) == threads,
        "a pinned team has a thread for each CPU");
  state_->threads.reserve(static_cast<std::size_t>(threads) - 1);
  for (int i = 1; i < threads; ++i) {
    state_->threads.emplace_back([state = state_.get(), i] { state->work(i); });
  }
}

Team::~Team() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping.store(true);
  }
  state_->work_ready.notify_all();
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
}

int Team::threads() const {
  return state_->size;
}

Seat Team::take_seat() const {
  return state_->seat_of(0);
}

void Team::run(std::int64_t tasks, const std::function<void(std::int64_t, int)>& task) {
  check(tasks <= static_cast<std::int64_t>(kLeftMask), "too many tasks in one batch");
  State& state = *state_;
  const int inside = state.working_thread();
  if (inside >= 0 || tasks <= 1 || state.threads.empty()) {
    for (std::int64_t i = 0; i < tasks; ++i) {
      task(i, inside > 0 ? inside : 0);
    }
    return;
  }
  state.owner_works = true;
  state.open_batch(tasks, task);
  state.claim(state.generation(), 0);
  state.wait_until_done(tasks);
  state.owner_works = false;
}

}  // namespace protean::cpu

#include "worker/paced_thread.h"

#include <ctime>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace protean {
namespace {

// The longest gap between two steps that counts as steps following each other.
constexpr std::int64_t kGapNs = 5 * kNsPerMs;
constexpr std::int64_t kLongestSleepNs = kNsPerMs;  // so that the end of steps is noticed soon
constexpr std::int64_t kShortestSleepNs = 200 * kNsPerUs;  // timers are not finer

std::int64_t nanoseconds(clockid_t clock) {
  timespec time{};
  check(clock_gettime(clock, &time) == 0, "the system has this clock");
  return std::int64_t{time.tv_sec} * kNsPerS + time.tv_nsec;
}

}  // namespace

PacedThread::PacedThread(double share)
    : share_(share),
      last_step_ns_(nanoseconds(CLOCK_MONOTONIC) - kGapNs),
      thread_([this] { run(); }) {
  check(share > 0 && share <= 1, "a share of a core is above 0 and at most 1");
}

bool PacedThread::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return false;
    }
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
  return true;
}

void PacedThread::post_urgent(Task task) {
  {
    const std::lock_guard lock(mutex_);
    urgent_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void PacedThread::begin_stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
}

bool PacedThread::ends_by(std::chrono::steady_clock::time_point until) {
  begin_stop();
  if (thread_.joinable()) {
    if (!thread_ends_.try_acquire_until(until)) {
      return false;
    }
    thread_.join();
  }
  return true;
}

void PacedThread::stop() {
  begin_stop();
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::optional<std::uint64_t> PacedThread::pieces() const {
  const std::lock_guard lock(mutex_);
  return runs_ || !tasks_.empty() || !urgent_.empty() ? std::optional(pieces_.load())
                                                      : std::nullopt;
}

void PacedThread::step_begins() {
  in_step_ = true;
}

void PacedThread::step_ends() {
  last_step_ns_ = nanoseconds(CLOCK_MONOTONIC);
  in_step_ = false;
}

bool PacedThread::steps_run() const {
  return in_step_ || nanoseconds(CLOCK_MONOTONIC) - last_step_ns_ < kGapNs;
}

bool PacedThread::may_go_on() {
  ++pieces_;
  if (!in_urgent_) {
    run_urgent();
  }
  rest();
  return !stopping_;
}

bool PacedThread::has_time() {
  const bool goes_on = may_go_on();
  const std::lock_guard lock(mutex_);
  return goes_on && tasks_.empty();
}

// Counts processor time, which steps lose; waiting for a disk costs them nothing.
void PacedThread::rest() {
  const std::int64_t now_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  if (!step_waits_) {
    owed_ns_ += static_cast<std::int64_t>(static_cast<double>(now_ns - worked_ns_) *
                                          (1.0 - share_) / share_);
  }
  while (owed_ns_ >= kShortestSleepNs && !step_waits_) {
    std::unique_lock lock(mutex_);
    if (stopping_ || !steps_run()) {
      owed_ns_ = 0;
      break;
    }
    if (!in_urgent_ && !urgent_.empty()) {
      lock.unlock();
      run_urgent();
      continue;
    }
    const std::int64_t begin_ns = nanoseconds(CLOCK_MONOTONIC);
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(owed_ns_, kLongestSleepNs)));
    ++pieces_;
    owed_ns_ = std::max<std::int64_t>(0, owed_ns_ - (nanoseconds(CLOCK_MONOTONIC) - begin_ns));
  }
  // Rests cost processor time too; if they cost more than the share, they would never end.
  worked_ns_ = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
}

void PacedThread::run_urgent() {
  in_urgent_ = true;
  for (;;) {
    std::unique_lock lock(mutex_);
    if (urgent_.empty()) {
      break;
    }
    const Task task = std::move(urgent_.front());
    urgent_.pop_front();
    lock.unlock();
    task();
    ++pieces_;
  }
  in_urgent_ = false;
}

// Waits for a task. Returns false if the thread stops and none is left.
bool PacedThread::run_one() {
  std::unique_lock lock(mutex_);
  runs_ = false;
  changed_.wait(lock, [this] { return stopping_ || !urgent_.empty() || !tasks_.empty(); });
  runs_ = true;
  ++pieces_;
  if (!urgent_.empty()) {
    lock.unlock();
    run_urgent();
    return true;
  }
  if (tasks_.empty()) {
    runs_ = false;
    ended_ = true;
    return false;
  }
  const Task task = std::move(tasks_.front());
  tasks_.pop_front();
  lock.unlock();
  task();
  return true;
}

void PacedThread::run() {
  while (run_one()) {
  }
  thread_ends_.release();
}

}  // namespace protean

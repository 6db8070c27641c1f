#include "replica/job_queue.h"

#include <chrono>
#include <exception>
#include <new>
#include <thread>
#include <utility>

namespace protean {

Status attempt(const std::function<Status()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kExhausted, "the system is out of memory");
  } catch (const std::exception& thrown) {
    return make_error(ErrorCode::kInternal, "{}", thrown.what());
  }
}

void JobQueue::give(Job job, std::string name, bool next) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return;
    }
    long_.insert(next ? long_.begin() : long_.end(), LongJob{std::move(name), std::move(job)});
  }
  changed_.notify_all();
}

void JobQueue::give_short(Job job) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return;
    }
    short_.push_back(std::move(job));
    ++hurrying_;
    ++short_jobs_;
  }
  changed_.notify_all();
}

bool JobQueue::take_back(const std::string& name) {
  bool dropped = false;
  {
    const std::lock_guard lock(mutex_);
    dropped = std::erase_if(long_, [&](const LongJob& job) { return job.name == name; }) > 0;
    taken_back_ = taken_back_ || (!name.empty() && running_ == name);
  }
  changed_.notify_all();
  return dropped;
}

void JobQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    hurrying_ -= static_cast<int>(short_.size());
    short_.clear();
    long_.clear();
  }
  changed_.notify_all();
}

void JobQueue::run_short(std::unique_lock<std::mutex>& lock) {
  const Job job = std::move(short_.front());
  short_.pop_front();
  lock.unlock();
  job();
  lock.lock();
  --hurrying_;
  changed_.notify_all();
}

bool JobQueue::await_turn(const std::function<bool()>& ready, TimeNs longest_ns, bool to_its_end) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point until = Clock::now() + std::chrono::nanoseconds(longest_ns);
  std::unique_lock lock(mutex_);
  const auto goes_on = [&] { return !closed_ && (to_its_end || !taken_back_); };
  while (goes_on()) {
    if (hurrying_ > 0) {
      changed_.wait(lock);
    } else if (ready() || Clock::now() >= until) {
      break;
    } else {
      changed_.wait_until(lock, until);
    }
  }
  return goes_on();
}

void JobQueue::look_again() {
  { const std::lock_guard lock(mutex_); }  // a thread that has looked waits by now
  changed_.notify_all();
}

void JobQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !short_.empty() || !long_.empty(); });
    if (closed_) {
      return;
    }
    if (!short_.empty()) {
      run_short(lock);
      continue;
    }
    const LongJob job = std::move(long_.front());
    long_.pop_front();
    running_ = job.name;
    lock.unlock();
    job.work();
    lock.lock();
    running_.clear();
    taken_back_ = false;
  }
}

void JobQueue::run_in_background(const Job& work) {
  bool done = false;
  std::exception_ptr thrown;
  std::thread thread([&] {
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex_);  // the thread that waits destroys `done`
    done = true;
    changed_.notify_all();
  });
  {
    std::unique_lock lock(mutex_);
    while (!done) {
      changed_.wait(lock, [&] { return done || !short_.empty(); });
      if (!short_.empty()) {
        run_short(lock);
      }
    }
  }
  thread.join();
  if (thrown) {
    std::rethrow_exception(thrown);
  }
}

}  // namespace protean

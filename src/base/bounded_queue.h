#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"

namespace protean {

// Many producers, one consumer. The capacity bounds what the outside may add (try_push); what must
// never be lost because it gives something back (a finished step, a cancel) goes in by push, whose
// number is bounded by what was accepted before. Any thread may call anything.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {
    check(capacity > 0, "a queue needs room for one");
  }

  // False when full or closed; the item is then untouched.
  bool try_push(T&& item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) {
        return false;
      }
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  void push(T item) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
  }

  // Waits for at least one item and takes them all, oldest first. Empty means closed and drained.
  std::vector<T> pop_all() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return closed_ || !items_.empty(); });
    std::vector<T> taken;
    taken.reserve(items_.size());
    for (T& item : items_) {
      taken.push_back(std::move(item));
    }
    items_.clear();
    return taken;
  }

  // False if by then nothing has come and the queue is open still.
  bool wait_until(std::chrono::steady_clock::time_point until) {
    std::unique_lock lock(mutex_);
    return ready_.wait_until(lock, until, [this] { return closed_ || !items_.empty(); });
  }

  // No more try_push; what is inside can still be taken.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace protean

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

// A queue of many producers and one consumer. try_push() respects the capacity. push() ignores it:
// it is for items that release something accepted earlier (a finished step, a cancel) and must not
// be lost. Every function may be called from any thread.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {
    check(capacity > 0, "a queue needs room for one");
  }

  // Returns false and leaves the item untouched if the queue is full or closed.
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

  // Waits for at least one item and takes all, oldest first. Returns none if the queue is closed
  // and drained.
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

  // Waits until the queue has an item or is closed. Returns false if neither happens in time.
  bool wait_until(std::chrono::steady_clock::time_point until) {
    std::unique_lock lock(mutex_);
    return ready_.wait_until(lock, until, [this] { return closed_ || !items_.empty(); });
  }

  // Makes try_push() fail from now on. Items in the queue can still be taken.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  // Empties a queue that was closed and lets it be used again. Nothing else uses it meanwhile.
  void reopen() {
    const std::lock_guard lock(mutex_);
    items_.clear();
    closed_ = false;
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace protean

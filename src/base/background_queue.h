#pragma once

#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace protean {

// Hands items to a thread of its own that may be slow or block for ever. put() never waits: if the
// queue is full, the item is dropped and counted. The destructor gives the thread two seconds to
// finish and then detaches it, so `consume` must own everything that it uses.
template <class T>
class BackgroundQueue {
 public:
  using Consume = std::function<void(std::vector<T> items)>;

  BackgroundQueue(std::size_t capacity, Consume consume)
      : state_(std::make_shared<State>(capacity)) {
    // Blocks all signals in the new thread: other threads wait for them.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    thread_ = std::thread([state = state_, consume = std::move(consume)] {
      for (auto items = state->take(); !items.empty(); items = state->take()) {
        consume(std::move(items));
      }
      state->end();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~BackgroundQueue() {
    if (state_->close(std::chrono::seconds(2))) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }
  BackgroundQueue(const BackgroundQueue&) = delete;
  BackgroundQueue& operator=(const BackgroundQueue&) = delete;

  void put(T item) { state_->put(std::move(item)); }
  std::uint64_t dropped() const { return state_->dropped(); }

 private:
  class State {
   public:
    explicit State(std::size_t capacity) : capacity_(capacity) {}
    void put(T item) {
      {
        const std::lock_guard lock(mutex_);
        if (closed_ || items_.size() >= capacity_) {
          ++dropped_;
          return;
        }
        items_.push_back(std::move(item));
      }
      changed_.notify_all();
    }
    std::vector<T> take() {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closed_ || !items_.empty(); });
      return std::exchange(items_, {});
    }
    void end() {
      {
        const std::lock_guard lock(mutex_);
        ended_ = true;
      }
      changed_.notify_all();
    }
    bool close(std::chrono::milliseconds patience) {
      std::unique_lock lock(mutex_);
      closed_ = true;
      changed_.notify_all();
      return changed_.wait_for(lock, patience, [this] { return ended_; });
    }
    std::uint64_t dropped() const {
      const std::lock_guard lock(mutex_);
      return dropped_;
    }

   private:
    const std::size_t capacity_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<T> items_;
    std::uint64_t dropped_ = 0;
    bool closed_ = false;
    bool ended_ = false;
  };

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace protean

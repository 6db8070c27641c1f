#pragma once

#include <functional>
#include <thread>

namespace protean {

// Turns SIGINT and SIGTERM into calls, on a thread of its own, while it lives. Construct it before
// other threads: they inherit that these signals are not for them.
class SignalWatcher {
 public:
  explicit SignalWatcher(std::function<void(int signal)> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  int signals_ = -1;  // signalfd
  int stop_ = -1;     // eventfd
  std::thread thread_;
};

}  // namespace protean

#pragma once

#include <signal.h>

#include <functional>
#include <initializer_list>
#include <thread>

namespace protean {

// Calls a function on a thread of its own whenever one of the signals arrives. Construct it before
// other threads, which inherit that these signals are blocked.
class SignalWatcher {
 public:
  SignalWatcher(std::initializer_list<int> signals, std::function<void(int signal)> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  sigset_t set_{};
  int signals_ = -1;  // signalfd
  int stop_ = -1;     // eventfd
  std::thread thread_;
};

}  // namespace protean

#include "host/signal_watcher.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace protean {
SignalWatcher::SignalWatcher(std::initializer_list<int> signals,
                             std::function<void(int)> on_signal) {
  sigemptyset(&set_);
  for (const int signal : signals) {
    sigaddset(&set_, signal);
  }
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  signals_ = ::signalfd(-1, &set_, SFD_CLOEXEC);
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  check(signals_ >= 0 && stop_ >= 0, "signalfd and eventfd are always there on Linux");
  thread_ = std::thread([this, on_signal = std::move(on_signal)] {
    std::array<pollfd, 2> waits = {pollfd{signals_, POLLIN, 0}, pollfd{stop_, POLLIN, 0}};
    while (true) {
      ::poll(waits.data(), waits.size(), -1);
      if (waits[1].revents != 0) {
        return;
      }
      signalfd_siginfo info{};
      if (waits[0].revents != 0 && ::read(signals_, &info, sizeof(info)) == sizeof(info)) {
        on_signal(static_cast<int>(info.ssi_signo));
      }
    }
  });
}

SignalWatcher::~SignalWatcher() {
  const std::uint64_t one = 1;
  check(::write(stop_, &one, sizeof(one)) == sizeof(one), "an eventfd takes a write");
  thread_.join();
  ::close(signals_);
  ::close(stop_);
  pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
}

}  // namespace protean

#include "host/systemd_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace protean {

void notify_systemd(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || (path[0] != '/' && path[0] != '@') ||
      std::strlen(path) >= sizeof address.sun_path) {
    return;
  }
  const std::size_t size = std::strlen(path);
  std::memcpy(address.sun_path, path, size);
  if (path[0] == '@') {
    address.sun_path[0] = '\0';  // an abstract socket name
  }
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket >= 0) {
    // A state that does not reach systemd is no reason to stop.
    [[maybe_unused]] const ssize_t sent =
        ::sendto(socket, state.data(), state.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size));
    ::close(socket);
  }
}

int watchdog_interval_ms() {
  const char* allowed_us = std::getenv("WATCHDOG_USEC");
  const char* pid = std::getenv("WATCHDOG_PID");
  if (allowed_us == nullptr || (pid != nullptr && std::atoll(pid) != ::getpid())) {
    return 0;
  }
  return static_cast<int>(std::clamp(std::atoll(allowed_us) / 2000, 0LL, 3'600'000LL));
}

}  // namespace protean

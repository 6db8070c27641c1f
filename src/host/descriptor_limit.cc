#include "host/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

#include "base/log.h"

namespace protean {
namespace {

constexpr std::int64_t kReserved = 64;  // for model files, logs, epoll

}  // namespace

int clip_connections(int wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return wanted;
  }
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto files = static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  const std::int64_t room = std::max<std::int64_t>(files - kReserved, 1);
  if (room < wanted) {
    log::warning(
        "only {} connections fit into the limit of {} open files, not {}: raise it with "
        "ulimit -n or LimitNOFILE",
        room, files, wanted);
  }
  return static_cast<int>(std::min<std::int64_t>(room, wanted));
}

}  // namespace protean

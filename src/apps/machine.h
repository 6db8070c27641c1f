#pragma once

#include <cstdint>
#include <ctime>

namespace protean {

// What this process may use, container limits included.
struct Machine {
  int cores = 1;
  std::int64_t free_memory_bytes = 0;
};
Machine this_machine();

std::tm local_time();

}  // namespace protean

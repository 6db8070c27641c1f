#include "terminal/exit.h"

#include <fmt/format.h>

#include <cstdio>

namespace protean {

int exit_with(const Error& error) {
  fmt::print(stderr, "protean: {}\n", error.message);
  return error.code == ErrorCode::kInternal ? 1 : 2;
}

}  // namespace protean

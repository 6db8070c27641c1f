#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace protean {

void check_failed(std::string_view what, const char* file, int line) {
  std::fprintf(stderr, "protean: check failed: %.*s (%s:%d)\n", static_cast<int>(what.size()),
               what.data(), file, line);
  std::abort();
}

}  // namespace protean

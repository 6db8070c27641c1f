#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace protean {

void check_failed(std::string_view what, const std::source_location& where) {
  std::fprintf(stderr, "protean: check failed: %.*s (%s:%u, %s)\n", static_cast<int>(what.size()),
               what.data(), where.file_name(), where.line(), where.function_name());
  std::abort();
}

}  // namespace protean

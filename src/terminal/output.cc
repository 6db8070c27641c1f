#include "terminal/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace protean {

void print_text(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fmt::print(stderr, "protean: cannot write to standard output: {}\n", std::strerror(errno));
    std::_Exit(1);
  }
}

void secure_standard_streams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0 && fd <= STDERR_FILENO;) {
    fd = ::open("/dev/null", O_RDWR);  // open() takes the lowest free number
  }
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace protean

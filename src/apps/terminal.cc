#include "apps/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/units.h"

namespace protean {

namespace {

void draw_bar(const std::string& what, double share, std::string_view total) {
  static constexpr std::size_t kWidth = 30;
  const auto filled = std::min(kWidth, static_cast<std::size_t>(share * kWidth));
  fmt::print(stderr, "\r{} [{}{}] {:3.0f} % of {}{}", what, std::string(filled, '#'),
             std::string(kWidth - filled, '.'), share * 100, total, share >= 1.0 ? "\n" : "");
  std::fflush(stderr);
}

double share_of(std::int64_t done, std::int64_t total) {
  return total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
}

}  // namespace

LoadProgress progress_bar(std::string what) {
  if (::isatty(STDERR_FILENO) == 0) {
    return [](std::int64_t, std::int64_t) {};
  }
  return [what = std::move(what)](std::int64_t done, std::int64_t total) {
    draw_bar(what, share_of(done, total), format_bytes(total));
  };
}

std::function<void(std::int64_t, std::int64_t)> count_bar(std::string what, std::string things) {
  if (::isatty(STDERR_FILENO) == 0) {
    return [](std::int64_t, std::int64_t) {};
  }
  return
      [what = std::move(what), things = std::move(things)](std::int64_t done, std::int64_t total) {
        draw_bar(what, share_of(done, total), fmt::format("{} {}", total, things));
      };
}

void print_text(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fmt::print(stderr, "protean: cannot write to standard output: {}\n", std::strerror(errno));
    std::_Exit(1);
  }
}

void secure_standard_streams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0 && fd <= STDERR_FILENO;) {
    fd = ::open("/dev/null", O_RDWR);  // the lowest free one, until that is past the three
  }
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace protean

#include "terminal/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

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

CountProgress progress_bar(std::string what) {
  if (::isatty(STDERR_FILENO) == 0) {
    return [](std::int64_t, std::int64_t) {};
  }
  return [what = std::move(what)](std::int64_t done, std::int64_t total) {
    draw_bar(what, share_of(done, total), format_bytes(total));
  };
}

CountProgress count_bar(std::string what, std::string things) {
  if (::isatty(STDERR_FILENO) == 0) {
    return [](std::int64_t, std::int64_t) {};
  }
  return
      [what = std::move(what), things = std::move(things)](std::int64_t done, std::int64_t total) {
        draw_bar(what, share_of(done, total), fmt::format("{} {}", total, things));
      };
}

void clear_bar() {
  if (::isatty(STDERR_FILENO) != 0) {
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
  }
}

}  // namespace protean

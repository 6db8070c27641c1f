#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean {

inline constexpr std::int64_t kKiB = 1024;
inline constexpr std::int64_t kMiB = 1024 * kKiB;
inline constexpr std::int64_t kGiB = 1024 * kMiB;

// Returns "1.50 GiB", "12.0 KiB" or "17 B".
std::string format_bytes(std::int64_t bytes);

// Reads "4GiB", "512m", "1.5 GB" or "1048576". K, M, G and T are powers of 1024, with or without
// an "i". Fails above 1024 TiB, so that a size may be multiplied by a number of devices.
Result<std::int64_t> parse_bytes(std::string_view text);

// Monotonic nanoseconds from an arbitrary start: the steady clock in the server, the event heap in
// the simulator. PURE code is handed times and never reads a clock.
using TimeNs = std::int64_t;
using Clock = std::function<TimeNs()>;
using RandomSource = std::function<std::uint64_t()>;

inline constexpr TimeNs kNsPerUs = 1'000;
inline constexpr TimeNs kNsPerMs = 1'000'000;
inline constexpr TimeNs kNsPerS = 1'000'000'000;

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <class T>
constexpr T round_up(T a, T multiple) {
  return ceil_div(a, multiple) * multiple;
}

}  // namespace protean

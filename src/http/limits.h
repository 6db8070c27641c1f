#pragma once

#include <cstdint>

#include "base/units.h"

namespace protean {

// Bounds on what clients may occupy.
struct HttpLimits {
  std::int64_t max_header_bytes = 16 * kKiB;
  std::int64_t max_body_bytes = 16 * kMiB;
  std::int64_t max_unsent_bytes = kMiB;  // unsent bytes of a stream; beyond, the stream is closed
  std::int64_t max_inflight_body_bytes = 256 * kMiB;  // body bytes of all requests being received
  int max_connections = 4096;         // beyond, a new one replaces the longest idle one
  int handshake_timeout_ms = 10'000;  // TLS
  int header_timeout_ms = 10'000;     // from a request's first byte
  int body_timeout_ms = 60'000;
  int idle_timeout_ms = 75'000;  // between requests
  int write_timeout_ms = 60'000;
  int sse_ping_ms = 15'000;  // silence after which a stream gets a comment; 0: never
};

}  // namespace protean

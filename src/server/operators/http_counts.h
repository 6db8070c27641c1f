#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

namespace protean {

// Counts the HTTP requests of a server, whose models come and go.
class HttpCounts {
 public:
  // `handler` is the pattern of the route.
  void add(std::string_view handler, std::string_view method, int status);
  // Returns http_requests_total in Prometheus' text format.
  std::string text() const;

 private:
  std::map<std::tuple<std::string, std::string, int>, std::int64_t> counts_;
};

}  // namespace protean

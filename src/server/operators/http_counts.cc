#include "server/operators/http_counts.h"

#include <fmt/format.h>

namespace protean {

void HttpCounts::add(std::string_view handler, std::string_view method, int status) {
  ++counts_[{std::string(handler), std::string(method), status}];
}

// Handlers and methods are names of the program's own, which need no escapes.
std::string HttpCounts::text() const {
  std::string text =
      "# HELP http_requests_total HTTP requests answered.\n# TYPE http_requests_total counter\n";
  for (const auto& [labels, count] : counts_) {
    const auto& [handler, method, status] = labels;
    text += fmt::format("http_requests_total{{handler=\"{}\",method=\"{}\",status=\"{}\"}} {}\n",
                        handler, method, status, count);
  }
  return text;
}

}  // namespace protean

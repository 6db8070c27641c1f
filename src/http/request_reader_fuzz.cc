// Feeds arbitrary bytes in pieces. The requests read must not depend on where the pieces are cut.

#include "http/request_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace protean {
namespace {

constexpr std::size_t kLongest = 4096;

std::string read_all(std::string_view stream, std::size_t piece) {
  const HttpLimits limits{.max_header_bytes = 8192, .max_body_bytes = 1000};
  std::string seen;
  std::string held;
  for (std::size_t given = 0;;) {
    RequestReader reader(limits);
    while (!reader.done()) {
      held.erase(0, reader.put(held));
      if (reader.error()) {
        return seen + " error";
      }
      if (!reader.done() && given == stream.size()) {
        return seen + (reader.begun() ? " more" : " end");
      }
      if (!reader.done()) {
        held += stream.substr(given, piece);
        given = std::min(given + piece, stream.size());
      }
    }
    const HttpCall call = reader.call();
    seen += call.method + " " + call.target + " " + reader.take_body() + "|";
    for (const auto& [name, value] : call.headers) {
      seen += name + ":" + value + "|";
    }
  }
}

}  // namespace
}  // namespace protean

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view stream(reinterpret_cast<const char*>(data),
                                std::min(size, protean::kLongest));
  protean::check(protean::read_all(stream, 1) == protean::read_all(stream, 17),
                 "a cut changes what is read");
  return 0;
}

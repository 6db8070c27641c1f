#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace protean::loadtest {

struct SseEvent {
  std::string_view type;  // "message" unless the stream states another
  std::string_view data;  // data lines joined with '\n'
};

// Parses server-sent events from bytes that arrive in any pieces (WHATWG HTML, section 9.2.6). The
// views of an event are valid only during the call of the sink.
class SseParser {
 public:
  using Sink = std::function<void(const SseEvent&)>;
  explicit SseParser(std::size_t max_event_bytes = std::size_t{16} << 20U)
      : max_event_bytes_(max_event_bytes) {}

  // Returns false if an event was larger than allowed, and then for ever.
  bool feed(std::string_view bytes, const Sink& sink);

 private:
  void take_line(std::string_view line, const Sink& sink);

  std::size_t max_event_bytes_;
  std::string line_;  // a line whose end has not arrived
  std::string data_;
  std::string type_;
  bool has_data_ = false;
  bool after_cr_ =
      false;              // the last byte was '\r', so that a '\n' now is part of the same line end
  bool at_start_ = true;  // a byte order mark may follow
  bool overflowed_ = false;
};

}  // namespace protean::loadtest

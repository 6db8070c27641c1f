#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace protean::loadtest {

struct SseEvent {
  std::string_view type;  // "message" unless the stream names another
  std::string_view data;  // data lines joined with '\n'
};

// Server-sent events from bytes that arrive in any pieces (WHATWG HTML, section 9.2.6): comments,
// all three line ends, events of many lines. The views of an event live until the call returns.
class SseParser {
 public:
  using Sink = std::function<void(const SseEvent&)>;
  explicit SseParser(std::size_t max_event_bytes = std::size_t{16} << 20U)
      : max_event_bytes_(max_event_bytes) {}

  // False once an event was larger than allowed; nothing is read after that.
  bool feed(std::string_view bytes, const Sink& sink);

  // Bytes of an event that no empty line has ended: at the end of a stream, one that was cut.
  bool has_unfinished_event() const { return has_data_ || !line_.empty(); }

 private:
  void take_line(std::string_view line, const Sink& sink);

  std::size_t max_event_bytes_;
  std::string line_;  // the beginning of a line whose end has not come
  std::string data_;
  std::string type_;
  bool has_data_ = false;
  bool after_cr_ = false;  // a '\n' that follows belongs to the line end before
  bool at_start_ = true;   // a byte order mark may come
  bool overflowed_ = false;
};

}  // namespace protean::loadtest

#include "loadtest/sse_parser.h"

#include <algorithm>
#include <utility>

namespace protean::loadtest {

bool SseParser::feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty() && !overflowed_) {
    if (after_cr_ && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      after_cr_ = false;
      continue;
    }
    after_cr_ = false;
    const std::size_t newline = bytes.find('\n');
    const std::size_t carriage_return = bytes.substr(0, newline).find('\r');
    const std::size_t end = std::min(newline, carriage_return);
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + data_.size() + part.size() > max_event_bytes_) {
      overflowed_ = true;
      break;
    }
    if (end == std::string_view::npos) {
      line_ += part;
      break;
    }
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (line_.empty()) {
      take_line(part, sink);
    } else {
      line_ += part;
      const std::string line = std::exchange(line_, {});
      take_line(line, sink);
    }
  }
  return !overflowed_;
}

void SseParser::take_line(std::string_view line, const Sink& sink) {
  if (at_start_ && line.starts_with("\xef\xbb\xbf")) {
    line.remove_prefix(3);
  }
  at_start_ = false;
  if (line.empty()) {
    if (has_data_) {
      sink({type_.empty() ? std::string_view("message") : type_, data_});
    }
    data_.clear();
    type_.clear();
    has_data_ = false;
    return;
  }
  const std::size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) {
    value.remove_prefix(1);
  }
  if (field == "data") {
    if (has_data_) {
      data_ += '\n';
    }
    data_ += value;
    has_data_ = true;
  } else if (field == "event") {
    type_ = value;
  }
}

}  // namespace protean::loadtest

#pragma once

// The format of log lines and the thread that writes them. log.h has the functions that log.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "base/log.h"
#include "base/result.h"

namespace protean::log {

enum class Format { kText, kJson };
void set_format(Format format);

Level level();
std::string_view to_string(Level level);
Result<Level> parse_level(std::string_view name);

// Logs a line with values for programs: "message name=value ..." in text, or members of the JSON
// object after time, level and message.
struct Field {
  std::string_view name;
  std::variant<std::string, std::int64_t, double> value;
};
void write(Level level, std::string_view message, std::initializer_list<Field> fields);

// Writes log lines on a thread of its own while it lives, so that no caller waits if standard error
// is a pipe that is not read. If its queue is full, lines are dropped; their number is logged when
// the pipe is read again. Without this object the calling thread writes each line. At most one may
// exist.
class Background {
 public:
  Background();
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
};

std::int64_t dropped_lines();

}  // namespace protean::log

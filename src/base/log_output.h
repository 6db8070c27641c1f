#pragma once

// How log lines look and who writes them; what is logged is log.h's.

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

// One line with values that programs read: text "message name=value ...", or members of the JSON
// object beside time, level and message.
struct Field {
  std::string_view name;
  std::variant<std::string, std::int64_t, double> value;
};
void write(Level level, std::string_view message, std::initializer_list<Field> fields);

// While it lives, lines are written by a thread of its own, so that nobody waits where standard
// error is a pipe that is not read; lines beyond what it holds are dropped, counted and, once
// somebody reads again, said. Without it each line is written by who logs it. At most one.
class Background {
 public:
  Background();
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
};

std::int64_t dropped_lines();

}  // namespace protean::log

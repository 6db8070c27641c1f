#pragma once

// What one render owns and may spend. Not thread-safe: one Runtime per render, on its thread.

#include <fmt/format.h>

#include <cstddef>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "jinja/limits.h"
#include "jinja/value.h"

namespace protean::jinja {

// How an error travels inside this module: parsing and rendering are recursive, and every level
// would only pass it on. Template turns it into a Result; it never leaves the module.
struct Failure {
  Error error;
  int line = 0;  // 0: the Runtime's line
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{make_error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...)};
}
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{make_error(ErrorCode::kUnsupported, format, std::forward<Args>(args)...)};
}

class Runtime {
 public:
  // `now` may be null: then there is no strftime_now. It must outlive the Runtime.
  Runtime(const Limits& limits, const std::tm* now) : limits_(limits), now_(now) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Each throws when that is more than the render may spend. Call before doing the work.
  void spend_steps(std::size_t steps);
  void spend_bytes(std::size_t bytes);
  void read(std::string_view text) { spend_steps(text.size() / 16); }
  void check_output(std::size_t bytes) const;

  Value text(std::string text, bool markup = false);
  Value sequence(Sequence::Kind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(Sequence::Kind::kList, std::move(items)); }
  Value tuple(std::vector<Value> items) {
    return sequence(Sequence::Kind::kTuple, std::move(items));
  }
  // Of equal keys the last value wins, at the first one's place.
  Value dict(std::vector<Pair> items);
  template <class T, class... Args>
  T* make(Args&&... args) {
    spend_bytes(sizeof(T));
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* made = object.get();
    objects_.push_back(std::move(object));
    return made;
  }

  const std::tm* now() const { return now_; }
  int line() const { return line_; }
  void set_line(int line) { line_ = line; }

 private:
  friend class Deeper;

  Limits limits_;
  const std::tm* now_;
  int line_ = 0;
  int depth_ = 0;
  std::size_t steps_ = 0;
  std::size_t bytes_ = 0;
  std::deque<std::string> texts_;
  std::vector<std::unique_ptr<Object>> objects_;
};

// Held by everything that recurses while rendering.
class Deeper {
 public:
  explicit Deeper(Runtime& runtime);
  ~Deeper() { --runtime_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Runtime& runtime_;
};

}  // namespace protean::jinja

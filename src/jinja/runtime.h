#pragma once

// The values that one rendering makes, and its limits. Not thread-safe: each rendering has its own.

#include <fmt/format.h>

#include <cstddef>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "jinja/limits.h"
#include "jinja/marked_text.h"
#include "jinja/value.h"

namespace protean::jinja {

// The exception for errors inside this module, where parsing and rendering are recursive. Template
// turns it into a Result, so it never leaves the module.
struct Failure {
  Error error;
  int line = 0;  // 0: the line is Runtime::line()
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
  // Without `now` there is no strftime_now(). `now` must outlive the Runtime.
  Runtime(const Limits& limits, const std::tm* now) : limits_(limits), now_(now) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Each throws Failure (kExhausted) beyond the limit. Called before the work is done.
  void spend_steps(std::size_t steps);
  void spend_bytes(std::size_t bytes);
  void read(std::string_view text) { spend_steps(text.size() / 16); }
  void check_output(std::size_t bytes) const;

  Value text(std::string text, bool markup = false);
  Value text(MarkedText text, bool markup = false);
  // Text that was made from all of `from`. Its origin is the template only if that of `from` is.
  Value text_from(const Value& from, std::string text);
  // Appends a text value with the ranges that the template wrote.
  void append(MarkedText& out, const Value& text);
  Value sequence(Sequence::Kind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(Sequence::Kind::kList, std::move(items)); }
  Value tuple(std::vector<Value> items) {
    return sequence(Sequence::Kind::kTuple, std::move(items));
  }
  // If keys are equal, the dict has the last value at the place of the first.
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
  std::map<const char*, std::vector<TextRange>>
      mixed_;  // for mixed texts, by their address in texts_
  std::vector<std::unique_ptr<Object>> objects_;
};

// Counts one level of recursion while it exists. Throws Failure beyond Limits::depth.
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

#pragma once

// The one error idiom: Result<T> for what a user or the world can cause, check() for our own bugs.
// No exception leaves a module; code that calls a throwing library catches at the call.

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace protean {

enum class ErrorCode {
  kInvalidArgument,  // the request makes no sense: HTTP 400, exit code 2
  kNotFound,         // a file, model or tensor does not exist
  kUnsupported,      // valid, but Protean does not support it
  kCorrupt,          // a file contradicts itself
  kExhausted,        // a budget or queue is full
  kUnavailable,      // not now: loading or draining
  kInternal,         // the system failed (mmap, a worker)
};

// `message` is one line for people: what was wrong, where, and what to do.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

// Holds a T or an Error. Reading the one that it does not hold stops the program.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    check(ok(), "Result::value on an error");
    return std::get<0>(state_);
  }
  const T& value() const& {
    check(ok(), "Result::value on an error");
    return std::get<0>(state_);
  }
  T&& value() && {
    check(ok(), "Result::value on an error");
    return std::get<0>(std::move(state_));
  }
  const Error& error() const {
    check(!ok(), "Result::error on a value");
    return std::get<1>(state_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    check(!ok(), "Result::error on a value");
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace protean

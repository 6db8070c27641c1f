#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/result.h"

// Why an operator or a policy does not get the groups that were asked for.

namespace protean {

template <class... Args>
Error refused(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kInvalidArgument,
               "these groups cannot be had: " + fmt::format(format, std::forward<Args>(args)...)};
}

// What is refused now can be had at another time.
inline Error for_now(Error why) {
  why.code = ErrorCode::kExhausted;
  return why;
}

// Refuses for the reason why homes cannot become one.
inline Error refused_for(const Error& why) {
  Error all = refused("{}", why.message);
  return why.code == ErrorCode::kInvalidArgument ? all : for_now(std::move(all));
}

}  // namespace protean

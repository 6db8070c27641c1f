#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace protean {

// Resumes the coroutine that awaits an operation, with the error as a value: a coroutine that
// throws is a bug. Arguments of an awaited call are named variables, since GCC 12 destroys some
// temporaries of an awaiting expression twice.
inline constexpr auto kResume = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace protean

#pragma once

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/limits.h"

namespace protean {

// Has an operation resume the coroutine that awaits it and give its error as a value: a coroutine
// that throws is a bug. Arguments of what is awaited have names, since GCC 12 destroys some
// temporaries of an awaiting expression twice.
inline constexpr auto kResume = boost::asio::as_tuple(boost::asio::use_awaitable);

// The bytes of one client, over TCP or over TLS on it. Reads ahead all the time, as far as there is
// room, so that a client that leaves is noticed while its answer is computed. TCP says the same of
// a client that shuts down its sending side and of one that is gone: no more input comes. The
// difference shows when something is sent, since the system of a client that is gone answers with a
// reset; the wire is closed then. One coroutine uses it; all on the io thread. Hold a shared_ptr
// while any of its coroutines runs.
class Wire : public std::enable_shared_from_this<Wire> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr TimePoint kNever = TimePoint::max();

  // Without a TLS context: plain.
  Wire(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
       const HttpLimits& limits);

  enum class Opened {
    kYes,
    kPlain,  // TLS was expected and the client does not speak it: the wire carries plain bytes
    kNo      // the client left or the handshake failed
  };
  // Shakes hands if there is a TLS context, then begins to read.
  boost::asio::awaitable<Opened> open();

  std::string peer() const;  // "127.0.0.1:50000", "[::1]:50000"

  // What has come and was not consumed. Valid until the next wait.
  std::string_view input() const;
  void consume(std::size_t size);
  bool ended() const { return ended_; }    // no more input will come
  bool closed() const { return closed_; }  // nothing can be sent either
  // No more is read until some is consumed: who leaves now is not noticed.
  bool full() const { return input_.size() >= read_ahead_; }

  // Until more input has come (true), it has ended, or the time is up.
  boost::asio::awaitable<bool> more_input(TimePoint until);
  // Until wake(), input, an end or the time; look what it was. False: the time is up.
  boost::asio::awaitable<bool> wait(TimePoint until);
  void wake() { signal_.cancel(); }

  // False when it cannot be sent, or not within the write timeout; the wire is then closed.
  boost::asio::awaitable<bool> write(std::string bytes);

  // Says goodbye, and reads away for a while what still comes: the kernel would else reset the
  // connection, and the client might lose our last words with it.
  boost::asio::awaitable<void> finish();
  void close();

  static TimePoint after(int timeout_ms) {
    return std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  }

 private:
  boost::asio::awaitable<bool> speaks_plain_http();
  boost::asio::awaitable<void> read_ahead();
  void set_deadline(TimePoint deadline);
  void watch_deadline();

  boost::asio::ip::tcp::socket socket_;
  const std::shared_ptr<boost::asio::ssl::context> context_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;
  const HttpLimits& limits_;
  const std::size_t read_ahead_;  // bytes
  boost::beast::flat_buffer input_;
  boost::asio::steady_timer signal_;  // for who waits for anything to happen
  boost::asio::steady_timer room_;    // for the reader
  boost::asio::steady_timer alarm_;   // runs out at or before deadline_
  TimePoint deadline_ = kNever;       // of what is being written; then the wire is closed
  bool alarm_set_ = false;
  bool ended_ = false;
  bool closed_ = false;
};

}  // namespace protean

#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/limits.h"
#include "http/resume.h"

namespace protean {

// The byte stream of one client, over TCP or TLS. Always reads ahead while its buffer has room, so
// that a client that leaves is noticed while its answer is computed. TCP reports a client that shut
// down its sending side and one that is gone alike: the input ends. Only when something is sent
// does the system of a client that is gone answer with a reset, which closes the wire. One
// coroutine uses a wire, on the io thread, and holds a shared_ptr to it while any of its coroutines
// runs.
class Wire : public std::enable_shared_from_this<Wire> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr TimePoint kNever = TimePoint::max();

  // Without a TLS context, the stream is not encrypted.
  Wire(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
       const HttpLimits& limits);

  enum class Opened {
    kYes,
    kPlain,  // TLS was expected, but the client sends plain HTTP: the stream is not encrypted
    kNo      // the client left or the handshake failed
  };
  // Performs the TLS handshake if there is a context, then begins to read.
  boost::asio::awaitable<Opened> open();

  std::string peer() const;  // "127.0.0.1:50000", "[::1]:50000"

  // Returns the bytes that have arrived and were not consumed. Valid until the next wait.
  std::string_view input() const;
  void consume(std::size_t size);
  bool ended() const { return ended_; }    // no more input will come
  bool closed() const { return closed_; }  // nothing can be sent either
  // True if nothing is read until some input is consumed. A client that leaves is not noticed then.
  bool full() const { return input_.size() >= read_ahead_; }

  // Waits until more input has arrived. Returns false if the input ended or the time is up first.
  boost::asio::awaitable<bool> more_input(TimePoint until);
  // Waits for wake(), input, its end or the closing of the wire. Returns false if the time is up
  // first.
  boost::asio::awaitable<bool> wait(TimePoint until);
  void wake() { signal_.cancel(); }

  // Sends the bytes. If that fails or exceeds the write timeout, closes the wire and returns false.
  boost::asio::awaitable<bool> write(std::string bytes);

  // Ends the sending side, then discards input for a while: closing with unread input makes the
  // kernel reset the connection, and the client may lose the last reply.
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
  boost::asio::steady_timer signal_;  // cancelled to end wait()
  boost::asio::steady_timer room_;    // cancelled when the reader has room again
  boost::asio::steady_timer alarm_;   // expires at or before deadline_
  TimePoint deadline_ = kNever;       // ends a handshake or write that takes too long
  bool alarm_set_ = false;
  bool ended_ = false;
  bool closed_ = false;
};

}  // namespace protean

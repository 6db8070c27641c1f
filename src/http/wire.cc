#include "http/wire.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/write.hpp>
#include <tuple>
#include <utility>

namespace protean {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kReadSize = 8 * 1024;
constexpr std::size_t kLeastReadAhead = 256 * 1024;
constexpr int kGoodbyeMs = 2000;

// Enables TCP keep-alive, which notices a client whose machine or network vanished.
void keep_alive(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&](int option, int value) {
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  };
  set(TCP_KEEPIDLE, 30);  // seconds
  set(TCP_KEEPINTVL, 10);
  set(TCP_KEEPCNT, 3);
}

}  // namespace

Wire::Wire(tcp::socket socket, std::shared_ptr<asio::ssl::context> tls, const HttpLimits& limits)
    : socket_(std::move(socket)),
      context_(std::move(tls)),
      limits_(limits),
      read_ahead_(std::max(kLeastReadAhead, 2 * static_cast<std::size_t>(limits.max_header_bytes))),
      signal_(socket_.get_executor()),
      room_(socket_.get_executor()),
      alarm_(socket_.get_executor()) {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  keep_alive(socket_);
  if (context_ != nullptr) {
    tls_.emplace(socket_, *context_);
  }
}

asio::awaitable<Wire::Opened> Wire::open() {
  Opened opened = Opened::kYes;
  if (tls_) {
    set_deadline(after(limits_.handshake_timeout_ms));
    const bool plain = co_await speaks_plain_http();
    if (plain) {
      opened = Opened::kPlain;
      tls_.reset();
    } else {
      const auto [ec] = co_await tls_->async_handshake(asio::ssl::stream_base::server, kResume);
      if (ec) {
        close();
      }
    }
    set_deadline(kNever);
    if (closed_) {
      co_return Opened::kNo;
    }
  }
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->read_ahead(); },
      asio::detached);
  co_return opened;
}

// Peeks at the first byte: an HTTP method begins with a capital letter, a TLS handshake does not.
asio::awaitable<bool> Wire::speaks_plain_http() {
  const auto readable = tcp::socket::wait_read;
  co_await socket_.async_wait(readable, kResume);
  char first = 0;
  error_code ec;
  if (!closed_) {
    socket_.receive(asio::buffer(&first, 1), tcp::socket::message_peek, ec);
  }
  co_return first >= 'A' && first <= 'Z';
}

std::string Wire::peer() const {
  error_code ec;
  const tcp::endpoint peer = socket_.remote_endpoint(ec);
  const std::string address = peer.address().to_string();
  return ec                       ? ""
         : peer.address().is_v6() ? fmt::format("[{}]:{}", address, peer.port())
                                  : fmt::format("{}:{}", address, peer.port());
}

std::string_view Wire::input() const {
  const auto data = input_.data();
  return {static_cast<const char*>(data.data()), data.size()};
}

void Wire::consume(std::size_t size) {
  input_.consume(size);
  if (!full()) {
    room_.cancel();
  }
}

// Reads concurrently with writes and without a deadline. After the end of input, waits for a reset.
asio::awaitable<void> Wire::read_ahead() {
  std::array<char, kReadSize> piece;
  error_code ec;
  std::size_t size = 0;
  while (!ended_) {
    if (full()) {
      room_.expires_at(kNever);
      co_await room_.async_wait(kResume);
      continue;
    }
    const auto space = asio::buffer(piece);
    if (tls_) {
      std::tie(ec, size) = co_await tls_->async_read_some(space, kResume);
    } else {
      std::tie(ec, size) = co_await socket_.async_read_some(space, kResume);
    }
    const auto kept = input_.prepare(size);
    asio::buffer_copy(kept, asio::buffer(piece, size));
    input_.commit(size);
    ended_ = ended_ || ec;
    wake();
  }
  if (ec == asio::error::eof || ec == asio::ssl::error::stream_truncated) {
    const auto reset = tcp::socket::wait_error;
    co_await socket_.async_wait(reset, kResume);
  }
  close();
}

asio::awaitable<bool> Wire::more_input(TimePoint until) {
  const std::size_t had = input_.size();
  bool in_time = true;
  while (in_time && !ended_ && input_.size() <= had) {
    in_time = co_await wait(until);
  }
  co_return input_.size() > had;
}

asio::awaitable<bool> Wire::wait(TimePoint until) {
  signal_.expires_at(until);
  const auto [ec] = co_await signal_.async_wait(kResume);
  co_return ec == asio::error::operation_aborted;
}

asio::awaitable<bool> Wire::write(std::string bytes) {
  set_deadline(after(limits_.write_timeout_ms));
  const auto data = asio::buffer(bytes);
  error_code ec;
  std::size_t size = 0;
  if (tls_) {
    std::tie(ec, size) = co_await asio::async_write(*tls_, data, kResume);
  } else {
    std::tie(ec, size) = co_await asio::async_write(socket_, data, kResume);
  }
  set_deadline(kNever);
  if (ec) {
    close();
  }
  co_return !closed_;
}

asio::awaitable<void> Wire::finish() {
  error_code ec;
  if (!tls_) {
    socket_.shutdown(tcp::socket::shutdown_send, ec);
  }
  const TimePoint until = after(kGoodbyeMs);
  std::int64_t budget = 2 * limits_.max_body_bytes;
  while (!ec && budget > 0 && !ended_ && std::chrono::steady_clock::now() < until) {
    budget -= static_cast<std::int64_t>(input_.size());
    consume(input_.size());
    co_await more_input(until);
  }
  if (tls_ && !closed_) {
    set_deadline(after(kGoodbyeMs));
    co_await tls_->async_shutdown(kResume);
    set_deadline(kNever);
  }
}

void Wire::close() {
  if (!std::exchange(closed_, true)) {
    ended_ = true;
    error_code ignored;
    socket_.close(ignored);
    room_.cancel();
    alarm_.cancel();
    wake();
  }
}

// Moving the deadline is cheap, since each write does so: the alarm is set anew only if the
// deadline is earlier, and checks the deadline when it expires.
void Wire::set_deadline(TimePoint deadline) {
  deadline_ = deadline;
  if (deadline != kNever && (!alarm_set_ || deadline < alarm_.expiry())) {
    watch_deadline();
  }
}

void Wire::watch_deadline() {
  alarm_set_ = true;
  alarm_.expires_at(deadline_);
  alarm_.async_wait([weak = weak_from_this()](const error_code& ec) {
    const std::shared_ptr<Wire> self = weak.lock();
    if (ec || self == nullptr) {
      return;
    }
    self->alarm_set_ = false;
    if (std::chrono::steady_clock::now() >= self->deadline_) {
      self->close();
    } else if (self->deadline_ != kNever) {
      self->watch_deadline();
    }
  });
}

}  // namespace protean

#include "http/listener.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <chrono>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace protean {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptRetry{100};
constexpr std::chrono::seconds kSlow{1};  // at one request or reply, before a client is replaced

}  // namespace

Listener::Listener(asio::io_context& io, const Connection::Setting& setting)
    : io_(io), setting_(setting), acceptor_(io), room_(io) {}

Status Listener::listen(const std::string& host, int port, const std::string& flag) {
  if (host.empty()) {  // the resolver would take it for all addresses
    return make_error(ErrorCode::kInvalidArgument,
                      "the host to listen on is empty: give an address, such as 127.0.0.1 for this "
                      "machine only or 0.0.0.0 for all networks");
  }
  error_code ec;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, ec);
  if (ec) {
    return make_error(ErrorCode::kInvalidArgument, "cannot resolve the host \"{}\": {}", host,
                      ec.message());
  }
  Status opened;
  for (const auto& entry :
       found) {  // "localhost" may resolve to an address that this machine lacks
    opened = open(entry.endpoint(), flag);
    if (opened.ok()) {
      asio::co_spawn(io_, accept(), [](const std::exception_ptr& failure) {
        check(failure == nullptr, "accepting connections does not throw");
      });
      return opened;
    }
  }
  return opened;
}

Status Listener::open(const tcp::endpoint& endpoint, const std::string& flag) {
  error_code ec;
  const auto attempt = [&](auto step) {
    if (!ec) {
      step();
    }
  };
  acceptor_.open(endpoint.protocol(), ec);
  attempt([&] { acceptor_.set_option(tcp::acceptor::reuse_address(true), ec); });
  if (endpoint.protocol() == tcp::v6()) {
    attempt([&] { acceptor_.set_option(asio::ip::v6_only(false), ec); });
  }
  attempt([&] { acceptor_.bind(endpoint, ec); });
  attempt([&] { acceptor_.listen(asio::socket_base::max_listen_connections, ec); });
  if (!ec) {
    port_ = acceptor_.local_endpoint(ec).port();
    return {};
  }
  error_code ignored;
  acceptor_.close(ignored);
  const std::string host = endpoint.address().to_string();
  if (ec == asio::error::address_in_use) {
    return make_error(ErrorCode::kUnavailable,
                      "port {} on {} is taken by another program: stop it or choose another {}",
                      endpoint.port(), host, flag);
  }
  return make_error(ErrorCode::kInvalidArgument, "cannot listen on {} port {}: {}", host,
                    endpoint.port(), ec.message());
}

bool Listener::full() const {
  return std::ssize(connections_) >= setting_.limits.max_connections;
}

asio::awaitable<void> Listener::accept() {
  bool failing = false;  // so that only the first of many failures is logged
  while (acceptor_.is_open()) {
    if (full()) {
      co_await wait_for_room();
      continue;
    }
    auto [ec, socket] = co_await acceptor_.async_accept(kResume);
    if (!ec) {
      failing = false;
      serve(std::move(socket));
    } else if (acceptor_.is_open() && ec != asio::error::connection_aborted) {
      if (!std::exchange(failing, true)) {
        log::warning("cannot accept connections: {}", ec.message());  // such as too many open files
      }
      evict();
      room_.expires_after(kAcceptRetry);
      co_await room_.async_wait(kResume);
    }
  }
}

// Waits for a new connection before it closes an old one for it.
asio::awaitable<void> Listener::wait_for_room() {
  const auto knock = tcp::acceptor::wait_read;
  co_await acceptor_.async_wait(knock, kResume);
  if (full()) {
    evict();
    room_.expires_after(kAcceptRetry);
    co_await room_.async_wait(kResume);
  }
}

void Listener::evict() {
  using Since = std::optional<Connection::TimePoint>;
  const auto oldest = [this](Since (Connection::*since_of)() const) {
    std::shared_ptr<Connection> found;
    for (const auto& connection : connections_) {
      const Since since = ((*connection).*since_of)();
      if (since && (found == nullptr || *since < *((*found).*since_of)())) {
        found = connection;
      }
    }
    return found;
  };
  std::shared_ptr<Connection> leaves = oldest(&Connection::idle_since);
  if (leaves == nullptr) {
    leaves = oldest(&Connection::slow_since);
    if (leaves != nullptr && std::chrono::steady_clock::now() - *leaves->slow_since() < kSlow) {
      return;
    }
  }
  if (leaves != nullptr) {
    leaves->close();
  }
}

void Listener::serve(tcp::socket socket) {
  auto connection = std::make_shared<Connection>(std::move(socket), tls_, setting_);
  connections_.insert(connection);
  asio::co_spawn(io_, connection->run(), [this, connection](const std::exception_ptr& failure) {
    ended(connection, failure);
  });
}

void Listener::ended(const std::shared_ptr<Connection>& connection,
                     const std::exception_ptr& failure) {
  if (failure != nullptr) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      log::error("a connection failed: {}", error.what());
    }
    connection->close();
  }
  connections_.erase(connection);
  room_.cancel();
  setting_.on_idle();
}

bool Listener::busy() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection->busy(); });
}

void Listener::close_receiving() {
  for (const auto& connection : connections_) {
    if (connection->receiving()) {
      connection->close();
    }
  }
}

void Listener::close() {
  error_code ignored;
  acceptor_.close(ignored);
  room_.cancel();
  for (const auto& connection : connections_) {
    connection->close();
  }
}

}  // namespace protean

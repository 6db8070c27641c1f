#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <memory>
#include <string>
#include <unordered_set>

#include "base/result.h"
#include "http/connection.h"

namespace protean {

// One port and its connections, at most limits.max_connections. Beyond that, a new connection
// replaces the one that has been idle longest; if none is idle, the one that has taken longest, and
// over a second, to send a request or take a reply; else it waits in the kernel's queue. Belongs to
// the io thread.
class Listener {
 public:
  Listener(boost::asio::io_context& io, const Connection::Setting& setting);

  // Port 0 takes any free port. Errors name `flag`, which sets the port.
  Status listen(const std::string& host, int port, const std::string& flag);
  int port() const { return port_; }  // after listen()
  // Applies to new connections; null serves them without TLS.
  void use_tls(std::shared_ptr<boost::asio::ssl::context> tls) { tls_ = std::move(tls); }

  bool busy() const;  // true if any connection is busy
  // Closes the connections that are receiving a body.
  void close_receiving();
  // Closes the port and all connections.
  void close();

 private:
  Status open(const boost::asio::ip::tcp::endpoint& endpoint, const std::string& flag);
  boost::asio::awaitable<void> accept();
  boost::asio::awaitable<void> wait_for_room();
  bool full() const;
  void evict();
  void serve(boost::asio::ip::tcp::socket socket);
  void ended(const std::shared_ptr<Connection>& connection, const std::exception_ptr& failure);

  boost::asio::io_context& io_;
  const Connection::Setting setting_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer room_;  // cancelled when a connection ends
  std::shared_ptr<boost::asio::ssl::context> tls_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  int port_ = 0;  // fixed by listen()
};

}  // namespace protean

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

// One port and the connections that came through it, at most limits.max_connections: a newcomer
// takes the place of the one that idles longest, else of the one that is longest, and over a
// second, about sending a request or taking a reply; where all are being answered it waits in the
// queue. On the io thread.
class Listener {
 public:
  Listener(boost::asio::io_context& io, const Connection::Setting& setting);

  // Port 0: any free one. Errors name the flag that would have to change.
  Status listen(const std::string& host, int port, const std::string& flag);
  int port() const { return port_; }  // after listen()
  // For connections that come from now on; null: plain.
  void use_tls(std::shared_ptr<boost::asio::ssl::context> tls) { tls_ = std::move(tls); }

  bool busy() const;  // any connection is
  void close_receiving();
  void close();  // the port and all connections

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

#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean {

struct ClientTls {
  std::string ca_file;    // empty: the system's certificates, or those that SSL_CERT_FILE names
  bool insecure = false;  // accepts any certificate
};
// Makes the context for connections to servers. Errors name --ca-file.
Result<boost::asio::ssl::context> make_client_tls(const ClientTls& options);

// One TCP or TLS connection to a server, used only on the thread of its io_context. close() ends
// every pending operation with an error.
class ClientConnection {
 public:
  using Endpoints = boost::asio::ip::tcp::resolver::results_type;

  explicit ClientConnection(boost::asio::io_context& io);

  // Tries the addresses one after the other, each for an equal part of `patience`, so that one
  // that does not answer leaves time for the others.
  boost::asio::awaitable<boost::system::error_code> connect(const Endpoints& endpoints,
                                                            std::chrono::nanoseconds patience);
  // Begins TLS on the open connection and checks that the certificate is of `host`. The context
  // must outlive the connection.
  boost::asio::awaitable<boost::system::error_code> start_tls(boost::asio::ssl::context& tls,
                                                              const std::string& host);
  // Returns what OpenSSL found wrong with the server's certificate: X509_V_OK or X509_V_ERR_*.
  long certificate_error();
  boost::asio::awaitable<boost::system::error_code> write(std::string_view bytes);
  // Bytes that were received. The next read overwrites them.
  struct Read {
    boost::system::error_code failed;
    std::string_view bytes;
  };
  boost::asio::awaitable<Read> read_some();
  void close();

 private:
  boost::asio::ip::tcp::socket plain_;
  bool closed_ = false;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> secure_;
  std::array<char, 16384> buffer_;
};

// Closes a connection after a time, unless the deadline is destroyed before.
class ConnectionDeadline {
 public:
  ConnectionDeadline(boost::asio::io_context& io, std::chrono::nanoseconds after,
                     std::shared_ptr<ClientConnection> connection);

  // Starts the time again, unless it has expired.
  void restart(std::chrono::nanoseconds after);
  bool expired() const { return *expired_; }

 private:
  void wait();

  boost::asio::steady_timer timer_;
  std::shared_ptr<ClientConnection> connection_;
  // Shared because an expiry that is already queued runs after the timer is destroyed.
  std::shared_ptr<bool> expired_;
};

}  // namespace protean

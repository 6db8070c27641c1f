#pragma once

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "loadtest/endpoint.h"
#include "loadtest/request_record.h"

namespace protean::loadtest {

// Makes asynchronous operations return a tuple of their error and result instead of throwing.
inline constexpr auto kResume = boost::asio::as_tuple(boost::asio::use_awaitable);

struct TlsOptions {
  std::string ca_file;    // empty: the system's certificates
  bool insecure = false;  // accepts any certificate
};
Result<boost::asio::ssl::context> make_tls_context(const TlsOptions& options);

// One TCP or TLS connection to the server, used only on the thread of its io_context. close() ends
// every pending operation with an error.
class Connection {
 public:
  using Endpoints = boost::asio::ip::tcp::resolver::results_type;
  struct Failure {
    Outcome outcome = Outcome::kConnectError;
    std::string why;
  };

  // `tls` is null for plain HTTP, and must outlive the connection.
  Connection(boost::asio::io_context& io, boost::asio::ssl::context* tls);

  boost::asio::awaitable<std::optional<Failure>> open(const Endpoints& endpoints,
                                                      const std::string& host);
  boost::asio::awaitable<boost::system::error_code> write(std::string_view bytes);
  // Bytes that were received. The next read overwrites them.
  struct Read {
    boost::system::error_code failed;
    std::string_view bytes;
  };
  boost::asio::awaitable<Read> read_some();
  void close();

 private:
  boost::asio::awaitable<std::optional<Failure>> handshake(const std::string& host);

  boost::asio::ssl::context* tls_;
  boost::asio::ip::tcp::socket plain_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> secure_;
  std::array<char, 16384> buffer_;
};

}  // namespace protean::loadtest

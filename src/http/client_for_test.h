#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace protean {

using Response = boost::beast::http::response<boost::beast::http::string_body>;

// A blocking HTTP client with timeouts, so that tests fail rather than hang.
class Client {
 public:
  explicit Client(int port, bool tls = false) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval timeout{.tv_sec = 120, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    if (tls) {
      start_tls();
    }
  }
  ~Client() { leave(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void leave() {
    SSL_free(std::exchange(ssl_, nullptr));  // sends no close_notify
    if (socket_ >= 0) {
      ::close(std::exchange(socket_, -1));
    }
  }
  std::string protocol() const {
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_, &name, &size);
    return {reinterpret_cast<const char*>(name), size};
  }
  std::string peer_name() const {
    X509* certificate = SSL_get1_peer_certificate(ssl_);
    char name[64] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                              sizeof name);
    X509_free(certificate);
    return name;
  }
  void stop_sending() {
    if (ssl_ != nullptr) {
      SSL_shutdown(ssl_);
    }
    ::shutdown(socket_, SHUT_WR);
  }
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ssl_ != nullptr
                               ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                               : ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return;  // the server may have hung up already; the next read reports it
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void get(const std::string& path) {
    send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  void post(const std::string& path, const std::string& body) {
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  Response read(bool head = false) {
    namespace http = boost::beast::http;
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    parser.skip(head);
    boost::system::error_code ec;
    http::read(*this, buffer_, parser, ec);
    EXPECT_FALSE(ec) << ec.message();
    return parser.release();
  }
  // Returns what arrives until it holds `wanted` or the server hangs up.
  std::string read_until(std::string_view wanted) {
    std::string text;
    char piece[4096];
    boost::system::error_code ec;
    while (text.find(wanted) == std::string::npos && !ec) {
      text.append(piece, read_some(boost::asio::buffer(piece), ec));
    }
    EXPECT_TRUE(!ec || ec == boost::asio::error::eof) << ec.message() << " after " << text;
    return text;
  }

  // Expects the end of the connection or a reset: the server may not have read all that was sent.
  void expect_hang_up() {
    char byte = 0;
    const ssize_t size = receive(&byte, 1);
    EXPECT_TRUE(size == 0 || (size < 0 && errno == ECONNRESET)) << size;
  }

  // Make the client a SyncReadStream, which Beast's http::read() wants.
  template <class Buffers>
  std::size_t read_some(const Buffers& buffers, boost::system::error_code& ec) {
    const boost::asio::mutable_buffer first = *boost::asio::buffer_sequence_begin(buffers);
    const ssize_t size = receive(first.data(), first.size());
    if (size > 0) {
      return static_cast<std::size_t>(size);
    }
    ec = size == 0 ? boost::system::error_code(boost::asio::error::eof)
                   : boost::system::error_code(errno, boost::system::system_category());
    return 0;
  }
  template <class Buffers>
  std::size_t read_some(const Buffers& buffers) {
    boost::system::error_code ec;
    const std::size_t size = read_some(buffers, ec);
    check(!ec, "only used where errors are looked at");
    return size;
  }

 private:
  void start_tls() {
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    ssl_ = SSL_new(context);  // holds a reference to the context
    SSL_CTX_free(context);
    constexpr unsigned char kHttp[] = "\x08http/1.1";
    SSL_set_alpn_protos(ssl_, kHttp, sizeof kHttp - 1);
    SSL_set_fd(ssl_, socket_);
    connected_ = connected_ && SSL_connect(ssl_) == 1;
  }
  ssize_t receive(void* to, std::size_t size) {
    return ssl_ != nullptr ? SSL_read(ssl_, to, static_cast<int>(size))
                           : ::recv(socket_, to, size, 0);
  }

  int socket_;
  SSL* ssl_ = nullptr;
  boost::beast::flat_buffer buffer_;
  bool connected_ = false;
};

}  // namespace protean

#include "loadtest/connection.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/write.hpp>

namespace protean::loadtest {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using boost::system::error_code;

Result<ssl::context> make_tls_context(const TlsOptions& options) {
  ssl::context context(ssl::context::tls_client);
  error_code failed;
  if (options.insecure) {
    context.set_verify_mode(ssl::verify_none, failed);
    return context;
  }
  context.set_verify_mode(ssl::verify_peer, failed);
  if (options.ca_file.empty()) {
    context.set_default_verify_paths(failed);
  } else {
    context.load_verify_file(options.ca_file, failed);
  }
  if (failed) {
    return make_error(ErrorCode::kInvalidArgument, "--ca-file {}: {}", options.ca_file,
                      failed.message());
  }
  return context;
}

Connection::Connection(asio::io_context& io, ssl::context* tls) : tls_(tls), plain_(io) {}

asio::awaitable<std::optional<Connection::Failure>> Connection::open(const Endpoints& endpoints,
                                                                     const std::string& host) {
  const auto [refused, endpoint] = co_await asio::async_connect(plain_, endpoints, kResume);
  if (refused) {
    co_return Failure{Outcome::kConnectError, refused.message()};
  }
  error_code ignored;
  plain_.set_option(tcp::no_delay(true), ignored);
  if (tls_ == nullptr) {
    co_return std::nullopt;
  }
  co_return co_await handshake(host);
}

asio::awaitable<std::optional<Connection::Failure>> Connection::handshake(const std::string& host) {
  secure_.emplace(plain_, *tls_);
  error_code failed;
  asio::ip::make_address(host, failed);
  if (failed) {  // `host` is a name, not an address
    SSL_set_tlsext_host_name(secure_->native_handle(), host.c_str());
  }
  secure_->set_verify_callback(ssl::host_name_verification(host), failed);
  const auto [refused] = co_await secure_->async_handshake(ssl::stream_base::client, kResume);
  if (refused) {
    co_return Failure{Outcome::kTlsError, refused.message()};
  }
  co_return std::nullopt;
}

asio::awaitable<error_code> Connection::write(std::string_view bytes) {
  const auto buffer = asio::buffer(bytes);
  if (secure_) {
    const auto [failed, count] = co_await asio::async_write(*secure_, buffer, kResume);
    co_return failed;
  }
  const auto [failed, count] = co_await asio::async_write(plain_, buffer, kResume);
  co_return failed;
}

asio::awaitable<Connection::Read> Connection::read_some() {
  const auto buffer = asio::buffer(buffer_);
  if (secure_) {
    const auto [failed, count] = co_await secure_->async_read_some(buffer, kResume);
    co_return Read{failed, {buffer_.data(), count}};
  }
  const auto [failed, count] = co_await plain_.async_read_some(buffer, kResume);
  co_return Read{failed, {buffer_.data(), count}};
}

void Connection::close() {
  error_code ignored;
  plain_.close(ignored);
}

}  // namespace protean::loadtest

#include "http/client_connection.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "http/resume.h"

namespace protean {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using boost::system::error_code;

Result<ssl::context> make_client_tls(const ClientTls& options) {
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

ClientConnection::ClientConnection(asio::io_context& io) : plain_(io) {}

asio::awaitable<error_code> ClientConnection::connect(const Endpoints& endpoints) {
  const auto [refused, endpoint] = co_await asio::async_connect(plain_, endpoints, kResume);
  error_code ignored;
  if (!refused) {
    plain_.set_option(tcp::no_delay(true), ignored);
  }
  co_return refused;
}

asio::awaitable<error_code> ClientConnection::start_tls(ssl::context& tls,
                                                        const std::string& host) {
  secure_.emplace(plain_, tls);
  error_code failed;
  asio::ip::make_address(host, failed);
  if (failed) {  // `host` is a name, not an address
    SSL_set_tlsext_host_name(secure_->native_handle(), host.c_str());
  }
  secure_->set_verify_callback(ssl::host_name_verification(host), failed);
  const auto [refused] = co_await secure_->async_handshake(ssl::stream_base::client, kResume);
  co_return refused;
}

asio::awaitable<error_code> ClientConnection::write(std::string_view bytes) {
  const auto buffer = asio::buffer(bytes);
  if (secure_) {
    const auto [failed, count] = co_await asio::async_write(*secure_, buffer, kResume);
    co_return failed;
  }
  const auto [failed, count] = co_await asio::async_write(plain_, buffer, kResume);
  co_return failed;
}

asio::awaitable<ClientConnection::Read> ClientConnection::read_some() {
  const auto buffer = asio::buffer(buffer_);
  if (secure_) {
    const auto [failed, count] = co_await secure_->async_read_some(buffer, kResume);
    co_return Read{failed, {buffer_.data(), count}};
  }
  const auto [failed, count] = co_await plain_.async_read_some(buffer, kResume);
  co_return Read{failed, {buffer_.data(), count}};
}

void ClientConnection::close() {
  error_code ignored;
  plain_.close(ignored);
}

ConnectionDeadline::ConnectionDeadline(asio::io_context& io, std::chrono::nanoseconds after,
                                       std::shared_ptr<ClientConnection> connection)
    : timer_(io, after),
      connection_(std::move(connection)),
      expired_(std::make_shared<bool>(false)) {
  wait();
}

void ConnectionDeadline::restart(std::chrono::nanoseconds after) {
  if (!expired()) {
    timer_.expires_after(after);
    wait();
  }
}

void ConnectionDeadline::wait() {
  timer_.async_wait([expired = expired_, connection = connection_](error_code cancelled) {
    if (!cancelled) {
      *expired = true;
      connection->close();
    }
  });
}

}  // namespace protean

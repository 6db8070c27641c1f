#include "http/client_connection.h"

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <boost/asio/error.hpp>
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

asio::awaitable<error_code> ClientConnection::connect(const Endpoints& endpoints,
                                                      std::chrono::nanoseconds patience) {
  error_code result = asio::error::host_not_found;
  asio::steady_timer timer(plain_.get_executor());
  for (const auto& entry : endpoints) {
    if (closed_) {
      co_return asio::error::operation_aborted;
    }
    error_code ignored;
    plain_.close(ignored);
    // The handler outlives neither the timer nor this coroutine: destroying the timer cancels it,
    // and what was queued before finds the flag.
    const auto waits = std::make_shared<bool>(true);
    timer.expires_after(patience / static_cast<std::int64_t>(endpoints.size()));
    timer.async_wait([this, waits](const error_code& cancelled) {
      if (!cancelled && *waits) {
        error_code failed;
        plain_.close(failed);
      }
    });
    const auto [failed] = co_await plain_.async_connect(entry.endpoint(), kResume);
    *waits = false;
    const bool late = failed == asio::error::operation_aborted && !closed_;
    result = late ? error_code(asio::error::timed_out) : failed;
    if (!result) {
      plain_.set_option(tcp::no_delay(true), ignored);
      break;
    }
  }
  co_return result;
}

asio::awaitable<error_code> ClientConnection::start_tls(ssl::context& tls,
                                                        const std::string& host) {
  secure_.emplace(plain_, tls);
  error_code failed;
  asio::ip::make_address(host, failed);
  SSL* const tls_handle = secure_->native_handle();
  if (failed) {  // `host` is a name, not an address
    SSL_set_tlsext_host_name(tls_handle, host.c_str());
    SSL_set_hostflags(tls_handle, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    SSL_set1_host(tls_handle, host.c_str());
  } else {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_handle), host.c_str());
  }
  const auto [refused] = co_await secure_->async_handshake(ssl::stream_base::client, kResume);
  co_return refused;
}

long ClientConnection::certificate_error() {
  return secure_ ? SSL_get_verify_result(secure_->native_handle()) : X509_V_OK;
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
  closed_ = true;
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

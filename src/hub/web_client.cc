#include "hub/web_client.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>

#include "http/resume.h"

namespace protean::hub {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kMostRedirects = 10;
constexpr std::size_t kMostErrorText = 4096;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

Error unreachable(const WebUrl& url, std::string_view why) {
  return make_error(ErrorCode::kUnavailable, "{}: {}", url.host_header, why);
}

// Says whether another try may help: not if the server's certificate is refused. `certificate` is
// what is wrong with it.
Error failed_handshake(const WebUrl& url, const error_code& why, long certificate) {
  const bool untrusted =
      why.category() == asio::error::get_ssl_category() &&
      ERR_GET_REASON(static_cast<unsigned long>(why.value())) == SSL_R_CERTIFICATE_VERIFY_FAILED;
  if (!untrusted) {
    return unreachable(url, why.message());
  }
  const auto refused = [&](std::string_view what) {
    return make_error(ErrorCode::kInvalidArgument, "{}: its certificate {}", url.host_header, what);
  };
  switch (certificate) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return refused(fmt::format(
          "does not name {}: check the URL, or what answers in this host's place", url.host));
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return refused("has expired, by the clock of this machine: check that clock");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return refused("is not valid yet, by the clock of this machine: check that clock");
    default:
      return refused(
          fmt::format("is not trusted ({}): SSL_CERT_FILE can name a PEM file with the "
                      "authorities to trust",
                      X509_verify_cert_error_string(certificate)));
  }
}

// Resolves a name within `patience`. The system's resolver cannot be stopped: an answer that comes
// later is dropped.
asio::awaitable<Result<tcp::resolver::results_type>> resolve(asio::io_context& io,
                                                             const WebUrl& peer,
                                                             std::chrono::seconds patience) {
  struct Answer {
    bool done = false;
    error_code failed;
    tcp::resolver::results_type endpoints;
  };
  const auto answer = std::make_shared<Answer>();
  const auto timer = std::make_shared<asio::steady_timer>(io, patience);
  const auto resolver = std::make_shared<tcp::resolver>(io);
  resolver->async_resolve(
      peer.host, peer.port,
      [answer, timer, resolver](const error_code& failed, tcp::resolver::results_type endpoints) {
        *answer = {true, failed, std::move(endpoints)};
        timer->cancel();
      });
  co_await timer->async_wait(kResume);
  if (!answer->done) {
    co_return unreachable(peer, fmt::format("its address was not found within {} s: check the "
                                            "name servers of this machine",
                                            patience.count()));
  }
  if (answer->failed) {
    co_return unreachable(peer, "its address cannot be found: " + answer->failed.message());
  }
  co_return answer->endpoints;
}

// The request in bytes. A proxy for plain http gets the whole URL.
std::string request_text(const WebRequest& request, const WebUrl& url,
                         const std::optional<Proxy>& proxy) {
  const bool by_proxy = proxy && !url.tls;
  std::string text = fmt::format(
      "{} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: protean\r\nAccept: */*\r\n"
      "Accept-Encoding: identity\r\nConnection: close\r\n",
      !request.json.empty() ? "POST"
      : request.head        ? "HEAD"
                            : "GET",
      by_proxy ? "http://" + url.host_header + url.target : url.target, url.host_header);
  if (by_proxy && !proxy->credentials.empty()) {
    text += "Proxy-Authorization: " + proxy->credentials + "\r\n";
  }
  if (!request.token.empty()) {
    text += "Authorization: Bearer " + request.token + "\r\n";
  }
  if (request.from_byte > 0) {
    text += fmt::format("Range: bytes={}-\r\n", request.from_byte);
  }
  if (!request.json.empty()) {
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n",
                        request.json.size());
  }
  return text + "\r\n" + request.json;
}

}  // namespace

bool is_temporary(int status) {
  return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504);
}

WebClient::WebClient(asio::io_context& io, ProxyRules proxies, std::chrono::seconds patience)
    : io_(io), proxies_(std::move(proxies)), patience_(patience) {}

// Reading the system's certificates takes longer than all else that a model in the cache needs.
asio::ssl::context& WebClient::tls() {
  if (!tls_) {
    tls_.emplace(*make_client_tls({}));
    SSL_CTX_set_min_proto_version(tls_->native_handle(), TLS1_2_VERSION);
  }
  return *tls_;
}

asio::awaitable<Result<WebAnswer>> WebClient::send(WebRequest request, const BodySink& sink) {
  auto url = parse_web_url(request.url);
  for (int hop = 0; url.ok() && hop <= kMostRedirects; ++hop) {
    auto answer = co_await exchange(request, *url, sink);
    if (!answer.ok() || !is_redirect(answer->status()) || answer->field("Location").empty() ||
        !request.json.empty()) {
      co_return answer;
    }
    auto next = resolve_location(*url, answer->field("Location"));
    if (next.ok() && !next->same_origin(*url)) {
      if (!request.follow_to_other_origins) {
        co_return answer;
      }
      if (url->tls && !next->tls) {
        co_return make_error(ErrorCode::kUnsupported, "{} leads from https to http: {}",
                             url->host_header, next->host_header);
      }
      request.token.clear();
    }
    url = std::move(next);
  }
  if (!url.ok()) {
    co_return url.error();
  }
  co_return make_error(ErrorCode::kUnsupported, "{} redirects more than {} times", url->host_header,
                       kMostRedirects);
}

asio::awaitable<Result<WebAnswer>> WebClient::exchange(const WebRequest& request, const WebUrl& url,
                                                       const BodySink& sink) {
  const auto proxy = proxy_for(proxies_, url);
  if (!proxy.ok()) {
    co_return proxy.error();
  }
  const auto endpoints = co_await resolve(io_, *proxy ? (*proxy)->url : url, patience_);
  if (!endpoints.ok()) {
    co_return endpoints.error();
  }
  if (closed_) {
    co_return unreachable(url, "the client is closed");
  }
  const ConnectionPtr connection = std::make_shared<ClientConnection>(io_);
  ConnectionDeadline deadline(io_, patience_, connection);
  open_.insert(connection);
  Status sent = co_await open(connection, *endpoints, url, *proxy);
  deadline.restart(patience_);
  if (sent.ok()) {
    const std::string text = request_text(request, url, *proxy);
    if (const error_code failed = co_await connection->write(text)) {
      sent = unreachable(url, failed.message());
    }
  }
  Result<WebAnswer> answer = unreachable(url, "");
  if (sent.ok()) {
    answer = co_await receive(connection, deadline, url, request, sink);
  } else {
    answer = sent.error();
  }
  open_.erase(connection);
  connection->close();
  if (deadline.expired()) {
    co_return unreachable(url, fmt::format("it sent nothing for {} s", patience_.count()));
  }
  co_return answer;
}

asio::awaitable<Status> WebClient::open(const ConnectionPtr& connection,
                                        const ClientConnection::Endpoints& endpoints,
                                        const WebUrl& url, const std::optional<Proxy>& proxy) {
  const WebUrl& peer = proxy ? proxy->url : url;
  if (const error_code refused = co_await connection->connect(endpoints, patience_)) {
    co_return unreachable(peer, refused.message());
  }
  if (!url.tls) {
    co_return Status();
  }
  if (proxy) {
    const Status tunnelled = co_await tunnel(connection, url, *proxy);
    if (!tunnelled.ok()) {
      co_return tunnelled;
    }
  }
  if (const error_code refused = co_await connection->start_tls(tls(), url.host)) {
    co_return failed_handshake(url, refused, connection->certificate_error());
  }
  co_return Status();
}

// Asks the proxy for a connection to the server.
asio::awaitable<Status> WebClient::tunnel(const ConnectionPtr& connection, const WebUrl& url,
                                          const Proxy& proxy) {
  const std::string bracket = url.host.find(':') == std::string::npos ? "" : "[";
  const std::string target = bracket + url.host + (bracket.empty() ? "" : "]") + ":" + url.port;
  const std::string text = fmt::format(
      "CONNECT {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: protean\r\n{}\r\n", target, target,
      proxy.credentials.empty() ? "" : "Proxy-Authorization: " + proxy.credentials + "\r\n");
  const error_code failed = co_await connection->write(text);
  if (failed) {
    co_return unreachable(proxy.url, failed.message());
  }
  ResponseReader answer([](std::string_view) {});
  answer.expect_no_body();
  Status read;
  while (read.ok() && !answer.done()) {
    const ClientConnection::Read got = co_await connection->read_some();
    read = got.failed ? answer.finish() : answer.feed(got.bytes);
  }
  if (!read.ok()) {
    co_return unreachable(proxy.url, read.error().message);
  }
  if (answer.status() / 100 != 2) {
    co_return make_error(
        is_temporary(answer.status()) ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument,
        "the proxy {} refuses a connection to {}: HTTP {}{}", proxy.url.host_header, target,
        answer.status(), answer.status() == 407 ? ": put USER:PASSWORD@ into its URL" : "");
  }
  co_return Status();
}

asio::awaitable<Result<WebAnswer>> WebClient::receive(const ConnectionPtr& connection,
                                                      ConnectionDeadline& deadline, WebUrl url,
                                                      const WebRequest& request,
                                                      const BodySink& sink) {
  std::string error_text;
  Status accepted;
  const ResponseReader* fields = nullptr;
  const auto on_body = [&](std::string_view bytes) {
    if (fields->status() / 100 != 2) {
      error_text += bytes.substr(0, kMostErrorText - std::min(kMostErrorText, error_text.size()));
    } else if (accepted.ok()) {
      accepted = sink(*fields, bytes);
    }
  };
  const auto reader = std::make_shared<ResponseReader>(on_body);
  fields = reader.get();
  if (request.head) {
    reader->expect_no_body();
  }
  Status read;
  while (read.ok() && accepted.ok() && !reader->done()) {
    const ClientConnection::Read got = co_await connection->read_some();
    if (got.failed && !reader->started()) {
      co_return unreachable(url, got.failed.message());
    }
    read = got.failed ? reader->finish() : reader->feed(got.bytes);
    deadline.restart(patience_);
  }
  if (!accepted.ok()) {
    co_return accepted.error();
  }
  if (!read.ok()) {
    co_return unreachable(url, read.error().message);
  }
  co_return WebAnswer{reader, std::move(url), std::move(error_text)};
}

void WebClient::close() {
  closed_ = true;
  for (const ConnectionPtr& connection : open_) {
    connection->close();
  }
}

}  // namespace protean::hub

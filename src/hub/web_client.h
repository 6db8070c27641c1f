#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/result.h"
#include "http/client_connection.h"
#include "http/response_reader.h"
#include "hub/proxy.h"
#include "hub/web_url.h"

namespace protean::hub {

// A GET, unless `json` or `head` make it a POST or a HEAD.
struct WebRequest {
  std::string url;
  std::string token;                    // bearer token, sent to the URL's own origin only
  std::string json = {};                // not empty: is posted as the body, and redirects answer
  std::int64_t from_byte = 0;           // above 0: asks for the bytes from there on (Range)
  bool head = false;                    // asks for the fields alone (HEAD)
  bool follow_to_other_origins = true;  // otherwise such a redirect is the answer
};

// An answer whose body has been handed out.
struct WebAnswer {
  std::shared_ptr<const ResponseReader> fields;
  WebUrl url;        // where the answer came from, after redirects
  std::string text;  // the beginning of the body of an error

  int status() const { return fields->status(); }
  std::string_view field(std::string_view name) const { return fields->field(name); }
};

// Sends GET, HEAD and POST requests over TLS or plain TCP, through proxies and along redirects.
// Each request has a connection of its own. Used on the thread of its io_context.
class WebClient {
 public:
  // Gets the bytes of the body of a 2xx answer, whose fields are known by then. An error ends the
  // request and is its result.
  using BodySink = std::function<Status(const ResponseReader& fields, std::string_view bytes)>;

  // A connection fails if its server is silent for longer than `patience`.
  WebClient(boost::asio::io_context& io, ProxyRules proxies, std::chrono::seconds patience);

  // Fails with kUnavailable if another try may succeed: the connection failed or ended too early.
  // An answer with any status is a success.
  boost::asio::awaitable<Result<WebAnswer>> send(WebRequest request, const BodySink& sink);

  // Ends all running requests with an error; later ones fail at once.
  void close();

 private:
  using ConnectionPtr = std::shared_ptr<ClientConnection>;

  boost::asio::awaitable<Result<WebAnswer>> exchange(const WebRequest& request, const WebUrl& url,
                                                     const BodySink& sink);
  boost::asio::awaitable<Status> open(const ConnectionPtr& connection,
                                      const ClientConnection::Endpoints& endpoints,
                                      const WebUrl& url, const std::optional<Proxy>& proxy);
  boost::asio::awaitable<Status> tunnel(const ConnectionPtr& connection, const WebUrl& url,
                                        const Proxy& proxy);
  boost::asio::awaitable<Result<WebAnswer>> receive(const ConnectionPtr& connection,
                                                    ConnectionDeadline& deadline, WebUrl url,
                                                    const WebRequest& request,
                                                    const BodySink& sink);

  boost::asio::ssl::context& tls();

  boost::asio::io_context& io_;
  ProxyRules proxies_;
  std::chrono::seconds patience_;
  std::optional<boost::asio::ssl::context> tls_;  // read with the first connection that needs it
  std::unordered_set<ConnectionPtr> open_;
  bool closed_ = false;
};

// True for a status after which the same request may succeed later.
bool is_temporary(int status);

}  // namespace protean::hub

#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/units.h"
#include "http/body_budget.h"
#include "http/cors.h"
#include "http/handler.h"
#include "http/limits.h"
#include "http/page_guard.h"
#include "http/request_reader.h"
#include "http/wire.h"

namespace protean {

// One client's connection: reads requests one after the other, has the handler answer them and
// writes the answers. Belongs to the io thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Setting {
    HttpHandler& handler;
    const HttpLimits& limits;
    const RandomSource& random;
    const Cors& cors;
    const PageGuard& pages;
    BodyBudget& bodies;
    std::function<void()> on_idle;  // called after each response
  };
  Connection(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
             const Setting& setting);

  // Serves until the connection ends. The caller keeps a shared_ptr to this until then.
  boost::asio::awaitable<void> run();
  void close() { wire_->close(); }
  // True from the end of a request to the end of its response.
  bool busy() const { return busy_; }
  // True while a request's body is being received.
  bool receiving() const { return receiving_; }
  // When the connection became idle; none while it serves a request.
  std::optional<TimePoint> idle_since() const { return idle_since_; }
  // When the client began to send the present request or to take the present reply; none while a
  // stream is sent.
  std::optional<TimePoint> slow_since() const { return slow_since_; }

 private:
  // What writing a response needs to know of its request.
  struct Exchange {
    HttpCall call;
    HttpHeaders cors;
    TimePoint begun;  // when the head had arrived
    bool http_1_1 = true;
    bool keep_alive = false;
  };

  boost::asio::awaitable<bool> await_request();
  boost::asio::awaitable<bool> serve_request();
  boost::asio::awaitable<void> read_head(RequestReader& reader);
  boost::asio::awaitable<void> read_body(RequestReader& reader, BodyShare& share);
  boost::asio::awaitable<bool> refuse(const Exchange& exchange, const ApiError& error);
  boost::asio::awaitable<bool> serve_call(const Exchange& exchange);
  // Takes the reply's body. `accepted`: the engine took the request and logs it when it ends.
  boost::asio::awaitable<bool> send(const Exchange& exchange, HttpReply& reply,
                                    bool accepted = false);
  boost::asio::awaitable<bool> serve_pending(const Exchange& exchange, PendingReply& pending);
  boost::asio::awaitable<void> await_change(const Exchange& exchange);
  boost::asio::awaitable<bool> serve_growing(const Exchange& exchange, GrowingAnswer& answer);
  boost::asio::awaitable<bool> send_events(const Exchange& exchange, GrowingAnswer& answer);
  boost::asio::awaitable<bool> send_piece(const Exchange& exchange, std::string_view events);
  static std::string head_of(const Exchange& exchange, const HttpReply& reply, bool keep_alive);
  Exchange exchange_of(const RequestReader& reader) const;
  bool left() const;
  void answered(const Exchange& exchange, int status, bool accepted);
  void changed(GrowingAnswer& answer);

  const std::shared_ptr<Wire> wire_;
  const Setting setting_;
  const std::string client_;         // address and port
  std::optional<ApiError> refusal_;  // why the present request is not read further
  std::optional<TimePoint> idle_since_;
  std::optional<TimePoint> slow_since_;
  bool busy_ = false;
  bool receiving_ = false;
  bool asked_after_ = false;  // something was sent to find out whether the client is still there
};

}  // namespace protean

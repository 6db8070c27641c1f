#include "http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <utility>

#include "base/log_output.h"

namespace protean {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

bool is_request_id(std::string_view text) {
  const auto visible = [](char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\'; };
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), visible);
}

void append(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ").append(value).append("\r\n");
}

void append(std::string& head, const HttpHeaders& headers) {
  for (const auto& [name, value] : headers) {
    append(head, name, value);
  }
}

std::string status_line(int status, bool http_1_1) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return fmt::format("HTTP/1.{} {} {}\r\n", http_1_1 ? 1 : 0, status, std::string_view(reason));
}

}  // namespace

Connection::Connection(tcp::socket socket, std::shared_ptr<asio::ssl::context> tls,
                       const Setting& setting)
    : wire_(std::make_shared<Wire>(std::move(socket), std::move(tls), setting.limits)),
      setting_(setting),
      client_(wire_->peer()) {}

asio::awaitable<void> Connection::run() {
  slow_since_ = std::chrono::steady_clock::now();
  const Wire::Opened opened = co_await wire_->open();
  slow_since_.reset();
  bool more = opened == Wire::Opened::kYes;
  if (opened == Wire::Opened::kPlain) {
    const Exchange nothing{.call = {}, .cors = {}, .begun = std::chrono::steady_clock::now()};
    const ApiError plain{.message = "this port speaks HTTPS: use https:// instead of http://"};
    co_await refuse(nothing, plain);
    busy_ = false;
  }
  while (more) {
    more = co_await await_request();
    if (more) {
      more = co_await serve_request();
    }
    if (std::exchange(busy_, false)) {
      setting_.on_idle();
    }
  }
  if (!wire_->closed()) {
    co_await wire_->finish();
    close();
  }
}

// The limit for an idle connection is longer than that for a header: clients keep connections open.
asio::awaitable<bool> Connection::await_request() {
  if (!wire_->input().empty()) {
    co_return true;
  }
  idle_since_ = std::chrono::steady_clock::now();
  const auto until = Wire::after(setting_.limits.idle_timeout_ms);
  const bool came = co_await wire_->more_input(until);
  idle_since_.reset();
  co_return came;
}

Connection::Exchange Connection::exchange_of(const RequestReader& reader) const {
  Exchange exchange{.call = reader.call(), .begun = std::chrono::steady_clock::now()};
  exchange.call.client = client_;
  if (!is_request_id(exchange.call.request_id)) {
    exchange.call.request_id = fmt::format("{:016x}{:016x}", setting_.random(), setting_.random());
  }
  if (reader.head_done()) {
    exchange.cors = setting_.cors.headers(exchange.call);
    exchange.http_1_1 = reader.http_1_1();
    exchange.keep_alive = reader.keep_alive();
  }
  return exchange;
}

asio::awaitable<bool> Connection::serve_request() {
  RequestReader reader(setting_.limits);
  refusal_.reset();
  slow_since_ = std::chrono::steady_clock::now();
  co_await read_head(reader);
  if (!reader.begun() || wire_->closed()) {
    co_return false;
  }
  Exchange exchange = exchange_of(reader);
  if (refusal_) {
    co_return co_await refuse(exchange, *refusal_);
  }
  if (const auto refused = setting_.pages.refuse(exchange.call)) {
    HttpReply reply = error_reply(*refused, setting_.handler.error_style(exchange.call));
    exchange.keep_alive = exchange.keep_alive && reader.done();
    co_return co_await send(exchange, reply);
  }
  if (std::optional<HttpReply> reply = setting_.handler.refuse_early(exchange.call)) {
    setting_.cors.answer_preflight(exchange.call, *reply);
    exchange.keep_alive = exchange.keep_alive && reader.done();
    co_return co_await send(exchange, *reply);
  }
  BodyShare share(setting_.bodies);
  if (!reader.done()) {
    receiving_ = true;
    co_await read_body(reader, share);
    receiving_ = false;
  }
  slow_since_.reset();
  if (wire_->closed()) {
    co_return false;
  }
  if (refusal_) {
    co_return co_await refuse(exchange, *refusal_);
  }
  exchange.call.body = reader.take_body();
  co_return co_await serve_call(exchange);
}

asio::awaitable<void> Connection::read_head(RequestReader& reader) {
  const auto until = Wire::after(setting_.limits.header_timeout_ms);
  while (true) {
    const std::size_t used = reader.put(wire_->input());
    wire_->consume(used);
    if (reader.error() || reader.head_done()) {
      refusal_ = reader.error();
      co_return;
    }
    if (const bool more = co_await wire_->more_input(until); !more) {
      refusal_ = {.status = wire_->ended() ? 400 : 408,
                  .message = wire_->ended() ? "the connection ended within the request's header"
                                            : "the request's header took too long to arrive"};
      co_return;
    }
  }
}

asio::awaitable<void> Connection::read_body(RequestReader& reader, BodyShare& share) {
  if (reader.wants_continue() && wire_->input().empty()) {
    std::string interim(kContinue);
    co_await wire_->write(std::move(interim));
  }
  const auto until = Wire::after(setting_.limits.body_timeout_ms);
  while (!wire_->closed()) {
    const std::size_t used = reader.put(wire_->input());
    wire_->consume(used);
    if (!share.grow_to(static_cast<std::int64_t>(reader.body_bytes()))) {
      refusal_ = {.status = 503,
                  .message =
                      "the server is receiving as many bytes of requests as it can hold: "
                      "try again later"};
      co_return;
    }
    if (reader.error() || reader.done()) {
      refusal_ = reader.error();
      co_return;
    }
    if (const bool more = co_await wire_->more_input(until); !more) {
      refusal_ = {.status = wire_->ended() ? 400 : 408,
                  .message = wire_->ended() ? "the connection ended within the request's body"
                                            : "the request's body took too long to arrive"};
      co_return;
    }
  }
}

// Closes the connection after the reply, since it is unknown where the next request would begin.
asio::awaitable<bool> Connection::refuse(const Exchange& exchange, const ApiError& error) {
  Exchange last = exchange;
  last.keep_alive = false;
  HttpReply reply = error_reply(error, setting_.handler.error_style(exchange.call));
  co_return co_await send(last, reply);
}

asio::awaitable<bool> Connection::serve_call(const Exchange& exchange) {
  busy_ = true;
  // The server may have begun to drain while the body arrived.
  std::optional<HttpReply> late = setting_.handler.refuse_early(exchange.call);
  if (late) {
    co_return co_await send(exchange, *late);
  }
  HttpHandler::Answer answer = setting_.handler.handle(exchange.call);
  if (HttpReply* reply = std::get_if<HttpReply>(&answer)) {
    co_return co_await send(exchange, *reply);
  }
  if (const auto* pending = std::get_if<std::shared_ptr<PendingReply>>(&answer)) {
    co_return co_await serve_pending(exchange, **pending);
  }
  co_return co_await serve_growing(exchange, *std::get<std::shared_ptr<GrowingAnswer>>(answer));
}

asio::awaitable<bool> Connection::serve_pending(const Exchange& exchange, PendingReply& pending) {
  // If the client leaves, a change of form that it asked for goes on; an answer that only it would
  // read is not begun.
  struct Guard {
    PendingReply& pending;
    ~Guard() { pending.on_ready = nullptr; }
  };
  const Guard guard{pending};
  pending.on_ready = [this] { wire_->wake(); };
  while (!left() && !pending.reply && !pending.answer) {
    co_await await_change(exchange);
  }
  if (pending.answer) {  // serve_growing() abandons it if the client has left
    co_return co_await serve_growing(exchange, *pending.answer);
  }
  if (left()) {
    close();
    answered(exchange, kClientGone, false);
    co_return false;
  }
  co_return co_await send(exchange, *pending.reply);
}

// Waits for a change while no byte of the response has been sent. Once the client has ended its
// input, first sends an interim response: clients skip it, and the system of a client that is gone
// answers with a reset. HTTP/1.0 has no interim responses, so there only TCP keep-alive finds out.
asio::awaitable<void> Connection::await_change(const Exchange& exchange) {
  if (wire_->ended() && exchange.http_1_1 && !std::exchange(asked_after_, true)) {
    std::string interim(kContinue);
    co_await wire_->write(std::move(interim));
  } else {
    co_await wire_->wait(Wire::kNever);
  }
}

asio::awaitable<bool> Connection::send(const Exchange& exchange, HttpReply& reply, bool accepted) {
  const bool keep_alive = exchange.keep_alive && !setting_.handler.draining();
  busy_ = true;
  answered(exchange, reply.status, accepted);
  std::string bytes = head_of(exchange, reply, keep_alive);
  if (reply.status != 204 && reply.status != 304) {
    append(bytes, "Content-Length", std::to_string(reply.body.size()));
  }
  bytes += "\r\n";
  if (exchange.call.method != "HEAD") {
    bytes += std::exchange(reply.body, {});
  }
  slow_since_ = std::chrono::steady_clock::now();
  const bool sent = co_await wire_->write(std::move(bytes));
  slow_since_.reset();
  co_return sent&& keep_alive;
}

// A client that fills the read-ahead buffer behind its request is treated as gone: nothing more is
// read, so its leaving would not be noticed.
bool Connection::left() const {
  return wire_->closed() || wire_->full();
}

asio::awaitable<bool> Connection::serve_growing(const Exchange& exchange, GrowingAnswer& answer) {
  // However this coroutine ends, the engine stops computing an answer that is not read.
  struct Guard {
    GrowingAnswer& answer;
    ~Guard() {
      answer.on_change = nullptr;
      answer.abandon();
    }
  };
  const Guard guard{answer};
  answer.on_change = [this, &answer] { changed(answer); };
  const auto pending = [&] { return !answer.done() && !(answer.streaming() && answer.started()); };
  while (!left() && pending()) {
    co_await await_change(exchange);
  }
  if (left()) {
    close();
    answered(exchange, kClientGone, answer.started());
    co_return false;
  }
  if (answer.streaming() && answer.started()) {
    co_return co_await send_events(exchange, answer);
  }
  HttpReply reply = answer.failure()
                        ? error_reply(*answer.failure(), answer.errors(), exchange.call.request_id)
                        : HttpReply{.body = answer.take_body()};
  co_return co_await send(exchange, reply, answer.started());
}

asio::awaitable<bool> Connection::send_events(const Exchange& exchange, GrowingAnswer& answer) {
  const bool keep_alive = exchange.keep_alive && exchange.http_1_1;
  answered(exchange, 200, true);
  const HttpReply head{.content_type = std::string(answer.stream_type()),
                       .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
  std::string bytes = head_of(exchange, head, keep_alive);
  bytes += exchange.http_1_1 ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
  bool open = co_await wire_->write(std::move(bytes));
  while (open && !left()) {
    const std::string events = answer.take_events();
    if (!events.empty()) {
      open = co_await send_piece(exchange, events);
    } else if (answer.done()) {
      break;
    } else {
      const int ping_ms = setting_.limits.sse_ping_ms;
      const auto until = ping_ms > 0 ? Wire::after(ping_ms) : Wire::kNever;
      // Sends a ping as soon as the client ends its input: if it is gone, a reset comes back.
      const bool ask = wire_->ended() && !std::exchange(asked_after_, true);
      bool happened = false;
      if (!ask) {
        happened = co_await wire_->wait(until);
      }
      if (!happened) {
        const std::string ping = answer.keep_alive();
        if (!ping.empty()) {
          open = co_await send_piece(exchange, ping);
        }
      }
    }
  }
  if (left()) {
    close();
  } else if (open && exchange.http_1_1) {
    open = co_await wire_->write("0\r\n\r\n");
  }
  co_return open && !wire_->closed() && keep_alive && !answer.failure();
}

asio::awaitable<bool> Connection::send_piece(const Exchange& exchange, std::string_view events) {
  std::string bytes = exchange.http_1_1 ? fmt::format("{:x}\r\n{}\r\n", events.size(), events)
                                        : std::string(events);
  co_return co_await wire_->write(std::move(bytes));
}

// Returns the status line and the headers without Content-Length, Transfer-Encoding and the empty
// line.
std::string Connection::head_of(const Exchange& exchange, const HttpReply& reply, bool keep_alive) {
  std::string head = status_line(reply.status, exchange.http_1_1);
  append(head, "Server", "protean");
  if (!reply.content_type.empty()) {
    append(head, "Content-Type", reply.content_type);
  }
  append(head, "x-request-id", exchange.call.request_id);
  append(head, "request-id", exchange.call.request_id);  // the name that Anthropic's clients read
  append(head, reply.headers);
  append(head, exchange.cors);
  if (keep_alive != exchange.http_1_1) {
    append(head, "Connection", keep_alive ? "keep-alive" : "close");
  }
  return head;
}

// Counts the response. Logs it unless the engine accepted the request, which is logged when it
// ends.
void Connection::answered(const Exchange& exchange, int status, bool accepted) {
  setting_.handler.count(exchange.call, status);
  if (accepted) {
    return;
  }
  const std::chrono::duration<double, std::milli> taken =
      std::chrono::steady_clock::now() - exchange.begun;
  log::write(
      setting_.handler.routine(exchange.call, status) ? log::Level::kDebug : log::Level::kInfo,
      "request",
      {{"id", exchange.call.request_id},
       {"method", excerpt(exchange.call.method)},
       {"path", excerpt(exchange.call.target)},
       {"client", client_},
       {"status", std::int64_t{status}},
       {"duration_ms", taken.count()}});
}

void Connection::changed(GrowingAnswer& answer) {
  if (static_cast<std::int64_t>(answer.unsent_bytes()) > setting_.limits.max_unsent_bytes) {
    log::warning("{}: the client does not read its stream: closing the connection", answer.id());
    close();  // also ends a write that is waiting
  }
  wire_->wake();
}

}  // namespace protean

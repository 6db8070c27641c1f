#include "server/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <string>
#include <utility>

#include "base/log.h"

namespace protean {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// Failures are values here: a coroutine that throws is a bug. Arguments of what is awaited have
// names: GCC 12 destroys some temporaries of an awaiting expression twice.
constexpr auto kResume = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kReadAhead = 64 * 1024;  // pipelined bytes kept while an answer runs
constexpr std::size_t kReadSize = 4096;

bool is_request_id(std::string_view text) {
  const auto visible = [](char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\'; };
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), visible);
}

template <class Message>
HttpCall read_call(const Message& message, const RandomSource& random) {
  const auto field = [&](auto name) { return std::string(std::string_view(message[name])); };
  HttpCall call{.method = std::string(std::string_view(message.method_string())),
                .target = std::string(std::string_view(message.target())),
                .authorization = field(http::field::authorization),
                .content_encoding = field(http::field::content_encoding),
                .request_id = field("x-request-id")};
  if (!is_request_id(call.request_id)) {
    call.request_id = fmt::format("{:016x}{:016x}", random(), random());
  }
  return call;
}

// What a request says about its own framing must be beyond doubt: where a proxy in front of us
// might read it another way, one request could hide in another.
template <class Message>
std::optional<ApiError> refuse_framing(const Message& message) {
  const auto [first, last] = message.equal_range(http::field::transfer_encoding);
  if (first != last) {
    if (message.version() < 11) {
      return ApiError{.message = "HTTP/1.0 has no Transfer-Encoding"};
    }
    if (message.count(http::field::content_length) > 0) {
      return ApiError{.message = "Transfer-Encoding and Content-Length exclude each other"};
    }
    if (std::next(first) != last || !beast::iequals(first->value(), "chunked")) {
      return ApiError{.status = 501, .message = "the only Transfer-Encoding here is chunked"};
    }
  }
  if (message.version() >= 11 && message.count(http::field::host) != 1) {
    return ApiError{.message = "an HTTP/1.1 request has one Host header"};
  }
  return std::nullopt;
}

template <class Body>
http::response<Body> make_response(const HttpReply& reply, unsigned version, bool keep_alive,
                                   const std::string& request_id) {
  http::response<Body> response{http::int_to_status(static_cast<unsigned>(reply.status)), version};
  response.set(http::field::server, "protean");
  if (!reply.content_type.empty()) {
    response.set(http::field::content_type, reply.content_type);
  }
  if (!request_id.empty()) {
    response.set("x-request-id", request_id);
  }
  for (const auto& [name, value] : reply.headers) {
    response.set(name, value);
  }
  response.keep_alive(keep_alive);
  return response;
}

// What a request that is no proper HTTP is told; status 0 when there is nobody to tell.
ApiError malformed(const error_code& ec, const HttpLimits& limits) {
  if (ec == http::error::buffer_overflow) {
    return {.status = 431, .message = "a chunk's extension or the trailers are too long"};
  }
  if (ec == http::error::header_limit) {
    return {
        .status = 431,
        .message = fmt::format("the request's headers exceed {} bytes", limits.max_header_bytes)};
  }
  if (ec == http::error::body_limit) {
    return {.status = 413,
            .message = fmt::format("the request's body exceeds {} bytes, or its chunks' framing "
                                   "even more",
                                   limits.max_body_bytes)};
  }
  const bool protocol = ec.category() == make_error_code(http::error::bad_version).category() &&
                        ec != http::error::end_of_stream && ec != http::error::partial_message;
  return {.status = protocol ? 400 : 0,
          .message = "the request is not valid HTTP: " + ec.message()};
}

}  // namespace

Connection::Connection(tcp::socket socket, const Setting& setting)
    : stream_(std::move(socket)),
      buffer_(kReadSize +
              std::max(kReadAhead, static_cast<std::size_t>(setting.limits.max_header_bytes))),
      change_(stream_.get_executor()),
      setting_(setting) {
  error_code ignored;
  stream_.socket().set_option(tcp::no_delay(true), ignored);
  change_.expires_at(asio::steady_timer::time_point::max());
}

void Connection::close() {
  gone_ = true;
  error_code ignored;
  stream_.socket().close(ignored);
  change_.cancel();
}

void Connection::expire_after(int timeout_ms) {
  stream_.expires_after(std::chrono::milliseconds(timeout_ms));
}

asio::awaitable<void> Connection::wait_for_change() {
  co_await change_.async_wait(kResume);
}

asio::awaitable<void> Connection::run() {
  bool more = true;
  while (more && !gone_) {
    more = co_await await_request();
    if (more) {
      more = co_await serve_request();
    }
    if (std::exchange(busy_, false)) {
      setting_.on_idle();
    }
  }
  if (unread_ && !gone_) {
    co_await drain_input();
  }
  close();
}

// Idle time is limited apart from the header's: a client may keep a connection for later.
asio::awaitable<bool> Connection::await_request() {
  if (buffer_.size() > 0) {
    co_return true;
  }
  expire_after(setting_.limits.idle_timeout_ms);
  const auto [ec, size] = co_await stream_.async_read_some(buffer_.prepare(kReadSize), kResume);
  buffer_.commit(size);
  co_return !ec;
}

asio::awaitable<bool> Connection::serve_request() {
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(setting_.limits.max_header_bytes));
  parser.body_limit(static_cast<std::uint64_t>(setting_.limits.max_body_bytes));
  expire_after(setting_.limits.header_timeout_ms);
  auto [ec, size] = co_await http::async_read_header(stream_, buffer_, parser, kResume);
  if (ec) {
    co_return co_await refuse_malformed(ec);
  }
  Exchange exchange{.call = read_call(parser.get(), setting_.random),
                    .version = parser.get().version(),
                    .keep_alive = parser.get().keep_alive()};
  if (const std::optional<ApiError> doubt = refuse_framing(parser.get())) {
    unread_ = true;
    exchange.keep_alive = false;
    HttpReply reply = error_reply(*doubt);
    co_return co_await send(exchange, reply);
  }
  if (std::optional<HttpReply> refusal = setting_.service.refuse_early(exchange.call)) {
    unread_ = !parser.is_done();
    exchange.keep_alive = exchange.keep_alive && !unread_;
    co_return co_await send(exchange, *refusal);
  }
  if (!parser.is_done()) {
    receiving_ = true;
    ec = co_await read_body(parser);
    receiving_ = false;
    if (ec) {
      co_return co_await refuse_malformed(ec);
    }
  }
  exchange.call.body = std::move(parser.get().body());
  co_return co_await serve_call(exchange);
}

// Counts what comes over the wire, as chunk extensions and trailers are not in the body's size: a
// body in one-byte chunks that is a third as long as allowed passes. The library's own reading does
// not return to be counted before the body ends.
asio::awaitable<error_code> Connection::read_body(Parser& parser) {
  const HttpLimits& limits = setting_.limits;
  expire_after(limits.body_timeout_ms);
  if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await asio::async_write(stream_, asio::buffer(kContinue), kResume);
  }
  parser.eager(true);
  std::int64_t room = 2 * limits.max_body_bytes + limits.max_header_bytes;
  error_code ec;
  while (true) {
    if (buffer_.size() > 0) {
      const std::size_t used = parser.put(buffer_.data(), ec);
      buffer_.consume(used);
      room -= static_cast<std::int64_t>(used);
    }
    if (parser.is_done() || (ec && ec != http::error::need_more)) {
      co_return ec;
    }
    const std::size_t size = std::min(kReadAhead, buffer_.max_size() - buffer_.size());
    if (room < 0 || size == 0) {
      co_return room < 0 ? http::error::body_limit : http::error::buffer_overflow;
    }
    const auto space = buffer_.prepare(size);
    std::size_t read = 0;
    std::tie(ec, read) = co_await stream_.async_read_some(space, kResume);
    buffer_.commit(read);
    if (ec) {
      co_return ec;
    }
  }
}

asio::awaitable<bool> Connection::serve_call(const Exchange& exchange) {
  busy_ = true;
  Service::Answer answer = setting_.service.handle(exchange.call);
  if (HttpReply* reply = std::get_if<HttpReply>(&answer)) {
    co_return co_await send(exchange, *reply);
  }
  co_return co_await serve_generation(exchange, *std::get<std::shared_ptr<Generation>>(answer));
}

asio::awaitable<bool> Connection::refuse_malformed(error_code ec) {
  const ApiError error = malformed(ec, setting_.limits);
  if (error.status != 0) {
    unread_ = true;
    const Exchange unknown;
    HttpReply reply = error_reply(error);
    co_await send(unknown, reply);
  }
  co_return false;
}

asio::awaitable<bool> Connection::send(const Exchange& exchange, HttpReply& reply) {
  const bool keep_alive = exchange.keep_alive && setting_.service.state() != ServerState::kDraining;
  busy_ = true;
  setting_.service.count(exchange.call, reply.status);
  expire_after(setting_.limits.write_timeout_ms);
  if (exchange.call.method == "HEAD") {
    auto response = make_response<http::empty_body>(reply, exchange.version, keep_alive,
                                                    exchange.call.request_id);
    response.content_length(reply.body.size());
    const auto [ec, size] = co_await http::async_write(stream_, response, kResume);
    co_return !ec && keep_alive;
  }
  auto response = make_response<http::string_body>(reply, exchange.version, keep_alive,
                                                   exchange.call.request_id);
  response.body() = std::move(reply.body);
  response.prepare_payload();
  const auto [ec, size] = co_await http::async_write(stream_, response, kResume);
  co_return !ec && keep_alive;
}

asio::awaitable<bool> Connection::serve_generation(const Exchange& exchange,
                                                   Generation& generation) {
  // Whatever way this ends, the engine shall not go on for nobody.
  struct Guard {
    Service& service;
    Generation& generation;
    ~Guard() {
      generation.on_change = nullptr;
      service.cancel(generation, {.status = kClientGone, .message = "the client left"});
    }
  };
  bool more = false;
  {
    const Guard guard{setting_.service, generation};
    generation.on_change = [this, &generation] { changed(generation); };
    watching_ = true;
    asio::co_spawn(
        stream_.get_executor(), [self = shared_from_this()] { return self->watch(); },
        asio::detached);
    while (!gone_ && !generation.done() && !(generation.streaming() && generation.started())) {
      co_await wait_for_change();
    }
    if (!gone_ && generation.streaming() && generation.started()) {
      more = co_await send_events(exchange, generation);
    } else if (!gone_) {
      HttpReply reply = generation.failure() ? error_reply(*generation.failure(), generation.errors())
                                             : HttpReply{.body = generation.take_body()};
      more = co_await send(exchange, reply);
    } else {
      setting_.service.count(exchange.call, kClientGone);
    }
  }
  co_await stop_watching();
  co_return more && !gone_;
}

asio::awaitable<bool> Connection::send_events(const Exchange& exchange, Generation& generation) {
  const bool chunked = exchange.version >= 11;
  const bool keep_alive = exchange.keep_alive && chunked;
  setting_.service.count(exchange.call, 200);
  const HttpReply head{.content_type = "text/event-stream; charset=utf-8",
                       .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
  auto response =
      make_response<http::empty_body>(head, exchange.version, keep_alive, exchange.call.request_id);
  response.chunked(chunked);
  http::response_serializer<http::empty_body> serializer(response);
  expire_after(setting_.limits.write_timeout_ms);
  const auto [ec, size] = co_await http::async_write_header(stream_, serializer, kResume);
  bool open = !ec;
  while (open && !gone_) {
    const std::string events = generation.take_events();
    if (!events.empty()) {
      open = co_await write_events(exchange, events);
    } else if (generation.done()) {
      break;
    } else {
      co_await wait_for_change();
    }
  }
  if (open && !gone_ && chunked) {
    expire_after(setting_.limits.write_timeout_ms);
    const auto last = http::make_chunk_last();
    const auto [end_ec, end_size] = co_await asio::async_write(stream_, last, kResume);
    open = !end_ec;
  }
  const bool reusable = open && keep_alive && !generation.failure();
  co_return reusable;
}

asio::awaitable<bool> Connection::write_events(const Exchange& exchange,
                                               const std::string& events) {
  expire_after(setting_.limits.write_timeout_ms);
  if (exchange.version >= 11) {
    const auto chunk = http::make_chunk(asio::buffer(events));
    const auto [ec, size] = co_await asio::async_write(stream_, chunk, kResume);
    co_return !ec;
  }
  const auto [ec, size] = co_await asio::async_write(stream_, asio::buffer(events), kResume);
  co_return !ec;
}

void Connection::changed(Generation& generation) {
  if (static_cast<std::int64_t>(generation.unsent_bytes()) > setting_.limits.max_unsent_bytes) {
    log::warning("{}: the client does not read its stream, which is cut", generation.identity().id);
    close();  // also ends the write that is stuck
  }
  change_.cancel();
}

// Reads past the stream's timeouts, on the socket: waiting long is fine here.
asio::awaitable<void> Connection::watch() {
  while (watching_ && buffer_.size() < kReadAhead) {
    const auto [ec, size] =
        co_await stream_.socket().async_read_some(buffer_.prepare(kReadSize), kResume);
    buffer_.commit(size);
    if (ec && ec != asio::error::operation_aborted) {
      close();
    }
    if (ec) {
      break;
    }
  }
  watching_ = false;
  change_.cancel();
}

asio::awaitable<void> Connection::stop_watching() {
  error_code ignored;
  stream_.socket().cancel(ignored);
  while (watching_) {
    co_await wait_for_change();
  }
}

// Closing with unread input makes the kernel reset the connection, and the client may lose our
// reply with it. So its input is read away for a while.
asio::awaitable<void> Connection::drain_input() {
  error_code ec;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ec);
  expire_after(2000);
  std::int64_t budget = 2 * setting_.limits.max_body_bytes;
  while (!ec && budget > 0 && !gone_) {
    buffer_.clear();
    std::size_t size = 0;
    std::tie(ec, size) = co_await stream_.async_read_some(buffer_.prepare(kReadAhead), kResume);
    budget -= static_cast<std::int64_t>(size);
  }
}

}  // namespace protean

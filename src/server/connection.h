#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <memory>

#include "server/server.h"

namespace protean {

// One client connection: reads requests one after the other, asks the service, writes the replies.
// While an answer is awaited or streamed it also reads ahead, to notice at once when the client
// leaves; what it reads is kept as the next, pipelined, request. All of it on the io thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Setting {
    Service& service;
    const HttpLimits& limits;
    const RandomSource& random;
    std::function<void()> on_idle;  // a response has been sent
  };
  Connection(boost::asio::ip::tcp::socket socket, const Setting& setting);

  boost::asio::awaitable<void> run();  // keep a shared_ptr to this until it is done
  void close();
  bool busy() const { return busy_; }            // from a whole request to its response's end
  bool receiving() const { return receiving_; }  // a request's body

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  // The request being answered, as far as writing the response needs it.
  struct Exchange {
    HttpCall call;
    unsigned version = 11;
    bool keep_alive = false;
  };

  boost::asio::awaitable<bool> await_request();
  boost::asio::awaitable<bool> serve_request();
  boost::asio::awaitable<boost::system::error_code> read_body(Parser& parser);
  boost::asio::awaitable<bool> serve_call(const Exchange& exchange);
  boost::asio::awaitable<bool> refuse_malformed(boost::system::error_code ec);
  boost::asio::awaitable<bool> send(const Exchange& exchange, HttpReply& reply);  // empties reply
  boost::asio::awaitable<bool> serve_generation(const Exchange& exchange, Generation& generation);
  boost::asio::awaitable<bool> send_events(const Exchange& exchange, Generation& generation);
  boost::asio::awaitable<bool> write_events(const Exchange& exchange, const std::string& events);
  boost::asio::awaitable<void> watch();
  boost::asio::awaitable<void> stop_watching();
  boost::asio::awaitable<void> wait_for_change();
  boost::asio::awaitable<void> drain_input();
  void changed(Generation& generation);
  void expire_after(int timeout_ms);

  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer change_;  // never expires; cancelled to say "look again"
  const Setting setting_;
  bool busy_ = false;
  bool receiving_ = false;
  bool gone_ = false;      // the client left, or was too slow
  bool watching_ = false;  // watch() runs
  bool unread_ = false;    // the client may still be sending what we will not read
};

}  // namespace protean

#pragma once

// An HTTP server that answers with given bytes at given times and records when it wrote them.

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"

namespace protean::loadtest {

struct ScriptedPiece {
  TimeNs at_ns = 0;  // since the request was read
  std::string bytes;
};
struct ScriptedAnswer {
  std::vector<ScriptedPiece> pieces;
  bool close = false;  // closes the connection after the last piece
};
using Script = std::function<ScriptedAnswer(const std::string& request)>;

inline std::string http_chunk(const std::string& bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}
inline const char* stream_head() {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
}
inline std::string token_event() {
  return R"(data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[)"
         R"({"index":0,"text":" token","logprobs":null,"finish_reason":null}]})"
         "\n\n";
}
inline std::string final_events(int tokens) {
  return fmt::format(
      "data: {{\"choices\":[{{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}}]}}\n\n"
      "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{}}}}}\n\n"
      "data: [DONE]\n\n",
      tokens);
}
// Answers with the first token after `ttft_ns` and the others `tpot_ns` apart.
inline ScriptedAnswer fixed_delay_answer(TimeNs ttft_ns, TimeNs tpot_ns, int tokens) {
  ScriptedAnswer answer;
  for (int i = 0; i < tokens; ++i) {
    answer.pieces.push_back({ttft_ns + i * tpot_ns, http_chunk(token_event())});
  }
  answer.pieces.front().bytes.insert(0, stream_head());
  answer.pieces.back().bytes += http_chunk(final_events(tokens)) + "0\r\n\r\n";
  return answer;
}

// Serves on its own thread until it is destroyed.
class ScriptedServer {
 public:
  explicit ScriptedServer(Script script)
      : script_(std::move(script)), acceptor_(io_, {boost::asio::ip::address_v4::loopback(), 0}) {
    acceptor_.listen(1024);
    port_ = acceptor_.local_endpoint().port();
    boost::asio::co_spawn(io_, accept(), boost::asio::detached);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~ScriptedServer() {
    io_.stop();
    thread_.join();
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  int port() const { return port_; }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  int connections() const {
    const std::lock_guard lock(mutex_);
    return connections_;
  }
  // When a request was read and its pieces were written, on the steady clock. times() returns them
  // by X-Request-Id.
  struct Times {
    TimeNs read_ns = 0;
    std::vector<TimeNs> written_ns;
  };
  std::map<std::string, Times> times() const {
    const std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  using tcp = boost::asio::ip::tcp;
  static constexpr auto kResume = boost::asio::as_tuple(boost::asio::use_awaitable);

  boost::asio::awaitable<void> accept() {
    while (true) {
      auto [failed, socket] = co_await acceptor_.async_accept(kResume);
      if (failed) {
        co_return;
      }
      {
        const std::lock_guard lock(mutex_);
        ++connections_;
      }
      boost::asio::co_spawn(io_, serve(std::move(socket)), boost::asio::detached);
    }
  }

  static std::string field(const std::string& request, const std::string& name) {
    const std::size_t at = request.find("\r\n" + name + ": ");
    if (at == std::string::npos) {
      return "";
    }
    const std::size_t begin = at + name.size() + 4;
    return request.substr(begin, request.find("\r\n", begin) - begin);
  }

  boost::asio::awaitable<void> serve(tcp::socket socket) {
    socket.set_option(tcp::no_delay(true));
    std::string data;
    for (bool open = true; open;) {
      const auto buffer = boost::asio::dynamic_buffer(data);
      const auto [cut, head] =
          co_await boost::asio::async_read_until(socket, buffer, "\r\n\r\n", kResume);
      if (cut) {
        co_return;
      }
      const std::string length = field(data.substr(0, head), "Content-Length");
      const std::size_t size = head + (length.empty() ? 0 : std::stoul(length));
      while (data.size() < size) {
        std::string more(size - data.size(), '\0');
        const auto [failed, count] =
            co_await socket.async_read_some(boost::asio::buffer(more), kResume);
        if (failed) {
          co_return;
        }
        data += more.substr(0, count);
      }
      const std::string request = data.substr(0, size);
      data.erase(0, size);
      const ScriptedAnswer answer = script_(request);
      open = !answer.close;
      co_await play(socket, answer, field(request, "X-Request-Id"));
    }
  }

  boost::asio::awaitable<void> play(tcp::socket& socket, const ScriptedAnswer& answer,
                                    std::string id) {
    const auto read = std::chrono::steady_clock::now();
    Times& times = times_of(id);
    times.read_ns = std::chrono::nanoseconds(read.time_since_epoch()).count();
    boost::asio::steady_timer timer(io_);
    for (const ScriptedPiece& piece : answer.pieces) {
      if (piece.at_ns > 0) {
        timer.expires_at(read + std::chrono::nanoseconds(piece.at_ns));
        co_await timer.async_wait(kResume);
      }
      note_write(times);  // before the write, so that a client that has the bytes finds their time
      const auto bytes = boost::asio::buffer(piece.bytes);
      const auto [failed, count] = co_await boost::asio::async_write(socket, bytes, kResume);
      if (failed) {
        co_return;
      }
    }
  }

  Times& times_of(const std::string& id) {
    const std::lock_guard lock(mutex_);
    return times_[id] = {};
  }
  void note_write(Times& times) {
    const std::lock_guard lock(mutex_);
    times.written_ns.push_back(
        std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
  }

  Script script_;
  boost::asio::io_context io_{1};
  tcp::acceptor acceptor_;
  int port_ = 0;
  mutable std::mutex mutex_;
  int connections_ = 0;
  std::map<std::string, Times> times_;
  std::thread thread_;
};

}  // namespace protean::loadtest

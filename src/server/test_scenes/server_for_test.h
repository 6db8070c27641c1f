#pragma once

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "http/client_for_test.h"
#include "server/server.h"
#include "server/test_scenes/byte_tokenizer_for_test.h"
#include "server/test_scenes/echo_engine_for_test.h"

namespace protean {

// A real server on a loopback socket, with an engine that echoes prompts instead of a model.
struct ServerTest : testing::Test {
  ServerTest() { log::set_level(log::Level::kError); }
  ~ServerTest() override { finish(); }

  void start() {
    ServedModel model{.names = {"echo"},
                      .tokenizer = &tokenizer,
                      .chat_template = &chat_template,
                      .max_model_len = 1'000'000,
                      .form = {.form = form, .wanted = form},
                      .replicas = replicas,
                      .router = "first-token"};
    Environment environment{.clock = steady_ns,
                            .unix_time_s = [] { return std::int64_t{1}; },
                            .random = [n = std::uint64_t{0}]() mutable { return ++n; }};
    options.port = 0;
    server = std::make_unique<Server>(
        options,
        std::vector<HostedModel>{{model, limits, inbox, nullptr, "", {}, share, configurations}},
        "", environment);
    const Status listening = server->listen();
    ASSERT_TRUE(listening.ok()) << listening.error().message;
    engine = std::make_unique<EchoEngine>(inbox, *server->sink(0), form);
    thread = std::thread([this] { server->run(); });
    server->set_ready();
  }
  // Returns how another server listens.
  Status listen_once(const ServerOptions& other) {
    BoundedQueue<Event> other_inbox(1);
    Server second(
        other,
        {{{.names = {"x"}, .tokenizer = &tokenizer, .chat_template = &chat_template},
          {},
          other_inbox}},
        "", {.clock = steady_ns, .unix_time_s = [] { return std::int64_t{1}; }, .random = {}});
    return second.listen();
  }
  void finish() {
    if (thread.joinable()) {
      server->stop();
      server->stop();  // a second call does not wait for answers
      thread.join();
    }
    engine.reset();
  }
  Response post(const std::string& path, const std::string& body) {
    Client client(server->port(), options.tls.enabled());
    client.post(path, body);
    return client.read();
  }
  Response get(const std::string& path) {
    Client client(server->port(), options.tls.enabled());
    client.get(path);
    return client.read();
  }

  ServerOptions options;
  ServiceLimits limits;
  Form form;
  int replicas = 1;
  std::shared_ptr<TimeShare> share;
  ListConfigurations configurations;
  ByteTokenizer tokenizer{false};
  ChatTemplate chat_template = ChatTemplate::chatml();
  BoundedQueue<Event> inbox{1024};
  std::unique_ptr<Server> server;
  std::unique_ptr<EchoEngine> engine;
  std::thread thread;
};

inline boost::json::value body_of(const Response& response) {
  boost::system::error_code ec;
  boost::json::value body = boost::json::parse(response.body(), ec);
  EXPECT_FALSE(ec) << response.body();
  return body;
}
inline void expect_error(const Response& response, unsigned status) {
  EXPECT_EQ(response.result_int(), status) << response.body();
  EXPECT_EQ(body_of(response).at("error").as_object().size(), 4U);
}

}  // namespace protean

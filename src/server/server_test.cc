// Tests a real server on a loopback socket, with an engine that echoes prompts instead of a model.

#include "server/server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "server/test_scenes/server_for_test.h"

namespace protean {
namespace {

namespace http = boost::beast::http;

TEST_F(ServerTest, AnswersWholeAndStreamedAlike) {
  start();
  const Response whole = post("/v1/completions", R"({"prompt":"hello","max_tokens":9})");
  ASSERT_EQ(whole.result_int(), 200U);
  EXPECT_EQ(whole[http::field::content_type], "application/json");
  EXPECT_EQ(whole["x-request-id"].size(), 32U);
  EXPECT_EQ(body_of(whole).at_pointer("/choices/0/text"), "hello");
  EXPECT_EQ(body_of(whole).at_pointer("/choices/0/finish_reason"), "stop");
  const Response streamed =
      post("/v1/completions", R"({"prompt":"hello","max_tokens":3,"stream":true})");
  EXPECT_EQ(streamed[http::field::content_type], "text/event-stream; charset=utf-8");
  EXPECT_TRUE(streamed.chunked());
  const std::string& text = streamed.body();
  EXPECT_TRUE(text.ends_with("data: [DONE]\n\n")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n') / 2, 3 + 1 + 1);
  EXPECT_NE(text.find(R"("finish_reason":"length")"), std::string::npos);
}

TEST_F(ServerTest, RequestIdComesBackAndNamesTheAnswer) {
  start();
  Client client(server->port());
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1})";
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: "
      "mine-1\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const Response response = client.read();
  EXPECT_EQ(response["x-request-id"], "mine-1");
  EXPECT_EQ(body_of(response).at("id"), "chatcmpl-mine-1");
}

TEST_F(ServerTest, FirstTokenComesBeforeTheLast) {
  start();
  engine->stall_after(2);
  Client client(server->port());
  client.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  const std::string begin = client.read_until(R"("text":"b")");
  EXPECT_NE(begin.find(R"("text":"a")"), std::string::npos);
  engine->stall_after(100);
  EXPECT_NE(client.read_until("[DONE]").find(R"("text":"c")"), std::string::npos);
}

TEST_F(ServerTest, ClientThatLeavesCancelsItsRequest) {
  start();
  engine->stall_after(1);
  std::size_t gone = 0;
  for (const char* stream : {"true", "false"}) {
    Client client(server->port());
    client.post("/v1/completions", R"({"prompt":"abc","stream":)" + std::string(stream) + "}");
    ASSERT_TRUE(engine->wait_for_arrivals(gone + 1));
    client.leave();
    EXPECT_TRUE(engine->wait_for_cancels(++gone)) << "stream: " << stream;
  }
}

TEST_F(ServerTest, ClientThatHalfClosesGetsItsAnswer) {
  start();
  engine->stall_after(1);
  Client whole(server->port());
  whole.post("/v1/completions", R"({"prompt":"abc"})");
  ASSERT_TRUE(engine->wait_for_arrivals(1));
  whole.stop_sending();
  EXPECT_TRUE(whole.read_until("\r\n\r\n").starts_with("HTTP/1.1 100 "));

  Client streaming(server->port());
  streaming.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  streaming.read_until(R"("text":"a")");
  streaming.stop_sending();
  streaming.read_until(": ping");

  Client old(server->port());
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Length: 16\r\n\r\n{\"prompt\":\"abc\"}");
  old.stop_sending();
  ASSERT_TRUE(engine->wait_for_arrivals(3));

  engine->stall_after(100);
  EXPECT_EQ(body_of(whole.read()).at_pointer("/choices/0/text"), "abc");
  EXPECT_NE(streaming.read_until("[DONE]").find(R"("text":"c")"), std::string::npos);
  EXPECT_EQ(body_of(old.read()).at_pointer("/choices/0/text"), "abc");
  whole.expect_hang_up();
}

TEST_F(ServerTest, ClientThatLeavesAfterItHalfClosedCancelsItsRequest) {
  start();
  engine->stall_after(1);
  Client whole(server->port());
  whole.post("/v1/completions", R"({"prompt":"abc"})");
  Client streaming(server->port());
  streaming.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  streaming.read_until(R"("text":"a")");
  ASSERT_TRUE(engine->wait_for_arrivals(2));
  for (Client* client : {&whole, &streaming}) {
    client->stop_sending();
    client->leave();
  }
  EXPECT_TRUE(engine->wait_for_cancels(2));
}

TEST_F(ServerTest, LeavingIsNoticedBehindAPipelinedRequestToo) {
  start();
  engine->stall_after(1);
  Client client(server->port());
  client.post("/v1/completions", R"({"prompt":"abc"})");
  ASSERT_TRUE(engine->wait_for_arrivals(1));
  client.get("/health");
  client.leave();
  EXPECT_TRUE(engine->wait_for_cancels(1));
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  Client client(server->port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
      "16\r\n\r\n{\"prompt\":\"one\"}"
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n"
      "{\"prompt\":\"two\",\"stream\":true}"
      "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nHEAD /v1/models HTTP/1.1\r\nHost: "
      "localhost\r\n\r\n"
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
      "16\r\n\r\n{\"prompt\":\"six\"}");
  EXPECT_EQ(body_of(client.read()).at_pointer("/choices/0/text"), "one");
  EXPECT_NE(client.read().body().find(R"("text":"w")"), std::string::npos);
  EXPECT_EQ(client.read().result_int(), 200U);
  const Response head = client.read(true);
  EXPECT_GT(std::stoi(std::string(head[http::field::content_length])), 20);
  EXPECT_EQ(body_of(client.read()).at_pointer("/choices/0/text"), "six");
}

TEST_F(ServerTest, OldClientsGetACloseDelimitedStream) {
  start();
  Client client(server->port());
  client.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Length: 29\r\n\r\n"
      "{\"prompt\":\"ab\",\"stream\":true}");
  const Response response = client.read();
  EXPECT_FALSE(response.chunked());
  EXPECT_TRUE(response.body().ends_with("data: [DONE]\n\n"));
}

TEST_F(ServerTest, RefusalsOfTheEngineKeepTheirStatus) {
  start();
  const std::pair<ErrorCode, unsigned> table[] = {{ErrorCode::kInvalidArgument, 400},
                                                  {ErrorCode::kExhausted, 429},
                                                  {ErrorCode::kUnavailable, 503}};
  for (const auto& [code, status] : table) {
    engine->refuse_with(make_error(code, "not this one"));
    expect_error(post("/v1/completions", R"({"prompt":"a","stream":true})"), status);
    expect_error(post("/v1/completions", R"({"prompt":"a"})"), status);
  }
}

TEST_F(ServerTest, RequestsBeyondTheLimitGet429) {
  limits.max_outstanding = 2;
  start();
  engine->stall_after(0);
  Client first(server->port());
  Client second(server->port());
  first.post("/v1/completions", R"({"prompt":"a"})");
  second.post("/v1/completions", R"({"prompt":"b"})");
  ASSERT_TRUE(engine->wait_for_arrivals(2));
  const Response third = post("/v1/completions", R"({"prompt":"c"})");
  expect_error(third, 429);
  EXPECT_FALSE(third[http::field::retry_after].empty());
  engine->stall_after(100);
  EXPECT_EQ(first.read().result_int(), 200U);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"c"})").result_int(), 200U);
}

TEST_F(ServerTest, ReaderThatDoesNotReadIsCutAndCancelled) {
  options.http.max_unsent_bytes = 64 * 1024;
  start();
  engine->never_end();
  Client client(server->port());
  client.post("/v1/completions", R"({"prompt":"abc","stream":true,"max_tokens":900000})");
  EXPECT_TRUE(engine->wait_for_cancels(1));
  EXPECT_EQ(get("/health").result_int(), 200U);
}

TEST_F(ServerTest, NewConnectionsReplaceTheLongestIdleOrWait) {
  options.http.max_connections = 2;
  start();
  engine->stall_after(1);
  Client busy(server->port());
  busy.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  busy.read_until(R"("text":"a")");
  Client idle(server->port());
  idle.get("/health");
  EXPECT_EQ(idle.read().result_int(), 200U);
  Client third(server->port());
  third.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  third.read_until(R"("text":"a")");
  idle.expect_hang_up();
  Client fourth(server->port());
  fourth.get("/health");
  third.leave();
  EXPECT_EQ(fourth.read().result_int(), 200U);
  engine->stall_after(100);
  EXPECT_NE(busy.read_until("[DONE]").find("[DONE]"), std::string::npos);
}

TEST_F(ServerTest, NewConnectionsReplaceSlowSenders) {
  options.http.max_connections = 2;
  options.http.header_timeout_ms = 60'000;  // longer than the new connection waits
  start();
  Client body(server->port());
  body.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  Client head(server->port());
  // When its first request is answered, its second has begun, later than the body of the other
  // client.
  head.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nX-");
  EXPECT_EQ(head.read().result_int(), 200U);
  Client newcomer(server->port());
  newcomer.get("/health");
  EXPECT_EQ(newcomer.read().result_int(), 200U);
  body.expect_hang_up();
  head.send("y: 1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(head.read().result_int(), 200U) << "there was room without it";
}

TEST_F(ServerTest, SilentStreamsGetPings) {
  options.http.sse_ping_ms = 20;
  start();
  engine->stall_after(1);
  Client client(server->port());
  client.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  client.read_until(R"("text":"a")");
  client.read_until("\r\n: ping\n\n\r\n");
  engine->stall_after(100);
  EXPECT_NE(client.read_until("[DONE]").find(R"("text":"c")"), std::string::npos);
}

TEST_F(ServerTest, LeavingIsNoticedBehindMorePipelinedBytesThanAreRead) {
  start();
  engine->stall_after(1);
  Client client(server->port());
  client.post("/v1/completions", R"({"prompt":"abc"})");
  ASSERT_TRUE(engine->wait_for_arrivals(1));
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" +
      std::string(2'000'000, 'x'));
  client.leave();
  EXPECT_TRUE(engine->wait_for_cancels(1));
}

TEST_F(ServerTest, ManyStreamsAtOnceKeepApart) {
  start();
  std::vector<std::thread> clients;
  std::atomic<int> right = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      Client client(server->port());
      for (int round = 0; round < 10; ++round) {
        const std::string prompt = std::to_string(i * 1000 + round) + "-abcdefghijkl";
        client.post("/v1/completions",
                    R"({"stream":true,"max_tokens":50,"prompt":")" + prompt + "\"}");
        const std::string body = client.read().body();
        std::string text;
        for (std::size_t at = body.find("\"text\":\""); at != std::string::npos;
             at = body.find("\"text\":\"", at + 1)) {
          text += body[at + 8] == '"' ? "" : std::string(1, body[at + 8]);
        }
        right += text == prompt ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(right, 80);
}

TEST_F(ServerTest, DrainFinishesStreamsAndRefusesNewWork) {
  start();
  engine->stall_after(1);
  Client streaming(server->port());
  Client kept(server->port());
  kept.get("/health");
  EXPECT_EQ(kept.read().result_int(), 200U);
  streaming.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  streaming.read_until(R"("text":"a")");
  server->stop();
  while (get("/health").result_int() == 200) {
    std::this_thread::yield();
  }
  kept.get("/health");
  for (const Response& refused : {kept.read(), get("/health"), get("/v1/models"),
                                  post("/v1/completions", R"({"prompt":"abc"})")}) {
    expect_error(refused, 503);
    EXPECT_FALSE(refused.keep_alive());
  }
  EXPECT_EQ(get("/metrics").result_int(), 200U);
  engine->stall_after(100);
  EXPECT_NE(streaming.read_until("[DONE]").find("[DONE]"), std::string::npos);
  thread.join();  // run() returns by itself
}

TEST_F(ServerTest, HalfSentBodyIsClosedByTheDrain) {
  start();
  engine->stall_after(1);
  Client streaming(server->port());
  streaming.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  streaming.read_until(R"("text":"a")");
  Client half(server->port());
  half.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
      "Content-Length: 14\r\n\r\n{");
  EXPECT_TRUE(half.read_until("\r\n\r\n").starts_with("HTTP/1.1 100"));
  server->stop();
  half.expect_hang_up();
  engine->stall_after(100);
  EXPECT_NE(streaming.read_until("[DONE]").find("[DONE]"), std::string::npos);
  thread.join();
}

TEST_F(ServerTest, DrainDeadlineEndsStreamsWithAnError) {
  options.drain_timeout_ms = 20;
  start();
  engine->stall_after(1);
  Client streaming(server->port());
  streaming.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  streaming.read_until(R"("text":"a")");
  server->stop();
  EXPECT_NE(streaming.read_until("\x01").find(R"(data: {"error":)"), std::string::npos);
  EXPECT_TRUE(engine->wait_for_cancels(1));
  thread.join();
}

TEST_F(ServerTest, ASecondStopEndsStreamsAtOnce) {
  options.drain_timeout_ms = 86'400'000;
  start();
  engine->stall_after(1);
  Client streaming(server->port());
  streaming.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  streaming.read_until(R"("text":"a")");
  server->stop();
  server->stop();
  EXPECT_NE(streaming.read_until("\x01").find(R"(data: {"error":)"), std::string::npos);
  EXPECT_TRUE(engine->wait_for_cancels(1));
  thread.join();
}

TEST_F(ServerTest, EmptyHostIsRefused) {
  options.host = "";
  const Status listening = listen_once(options);
  ASSERT_FALSE(listening.ok());
  EXPECT_EQ(listening.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(listening.error().message.find("host"), std::string::npos);
}

TEST_F(ServerTest, TakenPortIsAnError) {
  start();
  ServerOptions same = options;
  same.port = server->port();
  const Status listening = listen_once(same);
  ASSERT_FALSE(listening.ok());
  EXPECT_NE(listening.error().message.find("is taken"), std::string::npos);
}

TEST_F(ServerTest, TheSamePortForClientsAndOperatorsIsCalledThat) {
  start();
  options.port = options.admin.port = server->port();
  finish();
  server.reset();
  const Status listening = listen_once(options);
  ASSERT_FALSE(listening.ok());
  EXPECT_NE(listening.error().message.find("--port and --admin-port are both"), std::string::npos);
}

TEST_F(ServerTest, LoadingAnswers503UntilReady) {
  options.port = 0;
  server = std::make_unique<Server>(
      options,
      std::vector<HostedModel>{
          {{.names = {"x"}, .tokenizer = &tokenizer, .chat_template = &chat_template}, {}, inbox}},
      "",
      Environment{.clock = steady_ns,
                  .unix_time_s = [] { return std::int64_t{1}; },
                  .random = [] { return std::uint64_t{1}; }});
  ASSERT_TRUE(server->listen().ok());
  thread = std::thread([this] { server->run(); });
  expect_error(get("/health"), 503);
  expect_error(get("/v1/models"), 503);
  server->set_ready();
  while (get("/health").result_int() != 200) {
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace protean

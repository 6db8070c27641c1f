// Tests the answers to HTTP that is malformed, slow, too large or from foreign pages.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/test_scenes/server_for_test.h"

namespace protean {
namespace {

namespace http = boost::beast::http;

struct ServerHttpTest : ServerTest {};

TEST_F(ServerHttpTest, RefusesTooLargeAndMalformedRequests) {
  options.http.max_body_bytes = 1000;
  start();
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  std::string wordy_chunks;
  for (int i = 0; i < 300; ++i) {
    wordy_chunks += "1;because=" + std::string(100, 'x') + "\r\nx\r\n";
  }
  const std::pair<std::string, unsigned> table[] = {
      {post + "Content-Length: 5000000\r\n\r\n" + std::string(300'000, 'x'), 413},
      {post + "Transfer-Encoding: chunked\r\n\r\n800\r\n" + std::string(2048, 'x'), 413},
      {post + "X: " + std::string(40'000, 'x') + "\r\n\r\n", 431},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {post + "Content-Length: -1\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n" + wordy_chunks, 413},
      {post + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(300'000, 'x'), 431},
      {post + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + std::string(300'000, 'x'), 431},
      {post + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 400},
      {"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {post + "Content-Length: 3, 3\r\n\r\nabc", 400},
      {post + "Content-Length: +3\r\n\r\nabc", 400},
      {post + "Content-Length: 99999999999999999999\r\n\r\nabc", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n", 413},
      {post + "Transfer-Encoding: chunked\r\n\r\n1 \r\nx\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n1 ; a\r\nxx\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n;\r\n", 400},
      {post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "X: a\r\n b\r\nContent-Length: 0\r\n\r\n", 400},
      {post + "X: a\nContent-Length: 0\r\n\r\n", 400},
      {post + "X: a\rb\r\n\r\n", 400},
      {post + std::string("X: a\0b\r\n\r\n", 10), 400},
      {post + "Expect: 200-ok\r\nContent-Length: 3\r\n\r\nabc", 417},
      {"GET /health HTTP/1.1\nHost: x\n\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"NONSENSE\r\n\r\n", 400},
      {"GET / HTTP/3.9\r\n\r\n", 400},
      {std::string("\x16\x03\x01\x02\x00\x01", 6) + std::string(64, '\x7f') + "\r\n\r\n", 400},
      {post + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415},
      {post + "Content-Length: 3\r\n\r\n{\"a", 400},
  };
  for (const auto& [bytes, status] : table) {
    Client client(server->port());
    client.send(bytes);
    SCOPED_TRACE(bytes.substr(0, 90));
    const Response response = client.read();
    expect_error(response, status);
    // The connection stays usable if the request could be read to its end.
    EXPECT_TRUE(status == 415 || response.keep_alive() == bytes.ends_with("{\"a"));
  }
  EXPECT_EQ(get("/health").result_int(), 200U);
}

TEST_F(ServerHttpTest, ChunkedBodiesAreReadWithTrailersAndExtensions) {
  options.http.max_body_bytes = 1000;
  start();
  Client client(server->port());
  std::string bytes =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: CHUNKED\r\n\r\n";
  for (const char c : R"({"prompt":"a"})" + std::string(900, ' ')) {
    bytes += std::string("1;x=y\r\n") + c + "\r\n";
  }
  client.send(bytes + "0\r\nTrailer: t\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(body_of(client.read()).at_pointer("/choices/0/text"), "a");
  EXPECT_EQ(body_of(client.read()).at("status"), "ok");
}

TEST_F(ServerHttpTest, SendsContinueOnlyForBodiesItAccepts) {
  start();
  Client client(server->port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
      "14\r\n\r\n");
  EXPECT_TRUE(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 100"));
  client.send(R"({"prompt":"a"})");
  EXPECT_EQ(client.read().result_int(), 200U);
  client.send(
      "POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
      "14\r\n\r\n");
  EXPECT_EQ(client.read().result_int(), 404U);
}

TEST_F(ServerHttpTest, SlowHeadersAndBodiesAreCut) {
  options.http.header_timeout_ms = 50;
  options.http.body_timeout_ms = 50;
  start();
  const std::string post =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{";
  for (const std::string& begin : {std::string("GET /hea"), post}) {
    Client client(server->port());
    client.send(begin);
    const Response response = client.read();
    expect_error(response, 408);
    EXPECT_FALSE(response.keep_alive());
    EXPECT_EQ(client.read_until("\x01"), "");
  }
}

TEST_F(ServerHttpTest, IdleConnectionsAreCut) {
  options.http.idle_timeout_ms = 50;
  options.http.header_timeout_ms = 50;  // an empty line before a request counts as its first byte
  start();
  for (const char* begin : {"", "\r\n"}) {
    Client client(server->port());
    client.send(begin);
    EXPECT_EQ(client.read_until("\x01"), "");
  }
}

TEST_F(ServerHttpTest, RequestsCutByAHalfCloseGet400) {
  start();
  const std::string post =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{";
  for (const std::string& begin : {std::string("GET /hea"), post}) {
    Client client(server->port());
    client.send(begin);
    client.stop_sending();
    expect_error(client.read(), 400);
    client.expect_hang_up();
  }
  Client whole(server->port());
  whole.get("/health");
  whole.stop_sending();
  EXPECT_EQ(whole.read().result_int(), 200U);
}

TEST_F(ServerHttpTest, BodiesInFlightAreBoundedTogether) {
  options.http.max_inflight_body_bytes = 1000;
  options.http.max_body_bytes = 1000;
  start();
  const std::string post =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n";
  auto first = std::make_unique<Client>(server->port());
  first->send(post + std::string(800, ' '));
  Response refused;
  do {  // until the server has received the first one's bytes
    Client second(server->port());
    second.send(post + std::string(800, ' '));
    second.stop_sending();
    refused = second.read();
  } while (refused.result_int() == 400);
  expect_error(refused, 503);
  EXPECT_FALSE(refused[http::field::retry_after].empty());
  first.reset();
  Response fine;
  do {
    fine = this->post("/v1/completions", R"({"prompt":"a)" + std::string(700, 'a') + "\"}");
  } while (fine.result_int() == 503);
  EXPECT_EQ(fine.result_int(), 200U);
}

TEST_F(ServerHttpTest, KeysOpenTheApiByEitherHeader) {
  const std::vector<std::string> keys{"first-key", "second-key"};
  options.keys = ApiKeys(keys);
  start();
  const auto ask = [&](const std::string& headers) {
    Client client(server->port());
    client.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
    return client.read();
  };
  for (const char* right : {"Authorization: Bearer first-key\r\n", "X-Api-Key: second-key\r\n",
                            "Authorization: bearer second-key\r\n",
                            "Authorization: Bearer wrong\r\nx-api-key: first-key\r\n"}) {
    EXPECT_EQ(ask(right).result_int(), 200U) << right;
  }
  for (const char* wrong :
       {"", "Authorization: Bearer \r\n", "Authorization: first-key\r\n", "X-Api-Key: first-ke\r\n",
        "X-Api-Key: first-keyy\r\n", "Authorization: Basic first-key\r\n", "X-Api-Key:\r\n"}) {
    const Response response = ask(wrong);
    expect_error(response, 401);
    EXPECT_EQ(body_of(response).at_pointer("/error/code"), "invalid_api_key") << wrong;
  }
  EXPECT_EQ(get("/health").result_int(), 200U);
}

TEST_F(ServerHttpTest, TlsOnThePlainPortGetsAReadableError) {
  start();
  Client client(server->port());
  client.send(std::string("\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03", 11));
  const Response response = client.read();
  expect_error(response, 400);
  EXPECT_NE(response.body().find("use http://"), std::string::npos) << response.body();
  client.expect_hang_up();
}

TEST_F(ServerHttpTest, WithoutKeysForeignPagesAndNamesAreRefused) {
  options.allow_origins = {"https://a.example"};
  options.allowed_hosts = {"llm.example"};
  start();
  const auto ask = [&](const std::string& headers, const std::string& path = "/v1/models") {
    Client client(server->port());
    client.send("GET " + path + " HTTP/1.1\r\n" + headers + "\r\n");
    return client.read();
  };
  for (const char* open : {"/health", "/ping", "/metrics", "/metrics?x"}) {
    EXPECT_EQ(ask("Host: any.example\r\n", open).result_int(), 200U) << open;
    expect_error(ask("Host: localhost\r\nOrigin: https://b.example\r\n", open), 403);
  }
  for (const char* fine :
       {"Host: localhost:8000\r\n", "Host: 192.168.1.7:8000\r\n", "Host: [::1]:8000\r\n",
        "Host: LLM.example:8000\r\n", "Host: localhost\r\nOrigin: https://a.example\r\n",
        "Host: localhost:80\r\nOrigin: http://localhost:80\r\n"}) {
    EXPECT_EQ(ask(fine).result_int(), 200U) << fine;
  }
  const std::pair<const char*, const char*> refused[] = {
      {"Host: evil.example\r\n", "--allowed-hosts"},
      {"Host: evil.example\r\nOrigin: http://evil.example\r\n", "--allowed-hosts"},
      {"Host: localhost\r\nOrigin: https://b.example\r\n", "--allow-origin"},
      {"Host: localhost:80\r\nOrigin: http://localhost:81\r\n", "--allow-origin"},
      {"Host: localhost\r\nOrigin: null\r\n", "--allow-origin"}};
  for (const auto& [headers, remedy] : refused) {
    const Response response = ask(headers);
    expect_error(response, 403);
    EXPECT_NE(response.body().find(remedy), std::string::npos) << response.body();
  }
}

TEST_F(ServerHttpTest, WithKeysPagesAndNamesAreNotChecked) {
  options.keys = ApiKeys(std::vector<std::string>{"key"});
  start();
  Client client(server->port());
  client.send(
      "GET /v1/models HTTP/1.1\r\nHost: any.example\r\nOrigin: https://b.example\r\n"
      "x-api-key: key\r\n\r\n");
  EXPECT_EQ(client.read().result_int(), 200U);
}

TEST_F(ServerHttpTest, PagesOfAllowedOriginsMayReadAnswers) {
  options.allow_origins = {"https://a.example", "http://localhost:3000"};
  start();
  const auto ask = [&](const std::string& line, const std::string& headers) {
    Client client(server->port());
    client.send(line + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
    return client.read();
  };
  const std::string preflight =
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-stainless-os\r\n";
  Response response = ask("OPTIONS /v1/completions", "Origin: https://a.example\r\n" + preflight);
  EXPECT_EQ(response.result_int(), 204U);
  EXPECT_EQ(response.count(http::field::content_length), 0U);
  EXPECT_EQ(response["Access-Control-Allow-Origin"], "https://a.example");
  EXPECT_EQ(response["Access-Control-Allow-Methods"], "POST, OPTIONS");
  EXPECT_EQ(response["Access-Control-Allow-Headers"], "x-stainless-os");
  EXPECT_EQ(response["Access-Control-Max-Age"], "600");
  response = ask("OPTIONS /v1/completions", "Origin: https://b.example\r\n" + preflight);
  EXPECT_EQ(response.count("Access-Control-Allow-Origin"), 0U);
  EXPECT_EQ(response.count("Access-Control-Allow-Methods"), 0U);
  response = ask("GET /health", "Origin: http://localhost:3000\r\n");
  EXPECT_EQ(response["Access-Control-Allow-Origin"], "http://localhost:3000");
  EXPECT_EQ(response["Vary"], "Origin");
}

}  // namespace
}  // namespace protean

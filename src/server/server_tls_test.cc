// Tests the server with TLS: what depends on timing and on clients that leave, and TLS itself.

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "server/test_scenes/server_for_test.h"

namespace protean {
namespace {

// Writes a key and a self-signed certificate as PEM files.
void write_certificate(const TlsOptions& files, const char* name) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509_set_issuer_name(certificate, subject);
  ASSERT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
  std::FILE* out = std::fopen(files.certfile.c_str(), "w");
  ASSERT_NE(out, nullptr);
  PEM_write_X509(out, certificate);
  std::fclose(out);
  out = std::fopen(files.keyfile.c_str(), "w");
  ASSERT_NE(out, nullptr);
  PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(out);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

struct ServerTlsTest : ServerTest {
  ServerTlsTest() {
    std::filesystem::create_directories(folder);
    options.tls = {folder / "cert.pem", folder / "key.pem"};
    write_certificate(options.tls, "first");
  }
  ~ServerTlsTest() override {
    finish();
    std::filesystem::remove_all(folder);
  }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("protean-tls-" + std::to_string(::getpid()));
};

TEST_F(ServerTlsTest, AnswersStreamsAndPipelines) {
  start();
  EXPECT_EQ(body_of(post("/v1/completions", R"({"prompt":"hello"})")).at_pointer("/choices/0/text"),
            "hello");
  Client client(server->port(), true);
  EXPECT_EQ(client.protocol(), "http/1.1");
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n"
      "{\"prompt\":\"two\",\"stream\":true}GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(client.read().body().ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(client.read().result_int(), 200U);
  client.post("/v1/completions",
              R"({"prompt":")" + std::string(30'000, 'a') + R"(","max_tokens":30000})");
  EXPECT_EQ(client.read().body().size() / 1000, 30U);
}

TEST_F(ServerTlsTest, ClientsThatLeaveOrDoNotReadAreCancelled) {
  options.http.max_unsent_bytes = 64 * 1024;
  start();
  engine->stall_after(1);
  Client leaving(server->port(), true);
  leaving.post("/v1/completions", R"({"prompt":"abc"})");
  ASSERT_TRUE(engine->wait_for_arrivals(1));
  leaving.leave();
  EXPECT_TRUE(engine->wait_for_cancels(1));
  engine->never_end();
  engine->stall_after(1 << 30);
  Client stuck(server->port(), true);
  stuck.post("/v1/completions", R"({"prompt":"abc","stream":true,"max_tokens":900000})");
  EXPECT_TRUE(engine->wait_for_cancels(2));
  EXPECT_EQ(get("/health").result_int(), 200U);
}

TEST_F(ServerTlsTest, SilentClientsAreCut) {
  options.http.handshake_timeout_ms = 1000;
  start();
  Client silent(server->port());
  silent.expect_hang_up();
  auto next = std::make_unique<Client>(server->port(), true);
  while (!next->connected()) {  // on a busy machine a handshake may take too long
    next = std::make_unique<Client>(server->port(), true);
  }
  next->get("/health");
  EXPECT_EQ(next->read().result_int(), 200U);
}

TEST_F(ServerTlsTest, PlainHttpGetsAReadableError) {
  start();
  Client plain(server->port());
  plain.get("/health");
  const Response response = plain.read();
  expect_error(response, 400);
  EXPECT_NE(response.body().find("use https://"), std::string::npos) << response.body();
  plain.expect_hang_up();
}

TEST_F(ServerTlsTest, ClientThatHalfClosesGetsItsAnswer) {
  start();
  engine->stall_after(1);
  Client client(server->port(), true);
  client.post("/v1/completions", R"({"prompt":"abc"})");
  ASSERT_TRUE(engine->wait_for_arrivals(1));
  client.stop_sending();
  EXPECT_TRUE(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 100 "));
  engine->stall_after(100);
  EXPECT_EQ(body_of(client.read()).at_pointer("/choices/0/text"), "abc");
  client.expect_hang_up();  // OpenSSL reports an end without close_notify as an error
}

TEST_F(ServerTlsTest, ClosesWithCloseNotify) {
  start();
  Client client(server->port(), true);
  client.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read().result_int(), 200U);
  client.expect_hang_up();  // OpenSSL reports an end without close_notify as an error
}

TEST_F(ServerTlsTest, ReloadsItsCertificateAndKeepsTheOldOneIfThatFails) {
  start();
  EXPECT_EQ(Client(server->port(), true).peer_name(), "first");
  write_certificate(options.tls, "second");
  server->reload_tls();
  EXPECT_EQ(get("/health").result_int(), 200U);
  EXPECT_EQ(Client(server->port(), true).peer_name(), "second");
  std::ofstream(options.tls.keyfile) << "no key";
  log::set_level(log::Level::kOff);
  server->reload_tls();
  EXPECT_EQ(get("/health").result_int(), 200U);
  EXPECT_EQ(Client(server->port(), true).peer_name(), "second");
}

TEST_F(ServerTlsTest, ServesWhileItsFilesTakeLongToRead) {
  start();
  std::filesystem::remove(options.tls.certfile);
  ASSERT_EQ(::mkfifo(options.tls.certfile.c_str(), 0600), 0);
  log::set_level(log::Level::kOff);
  std::thread reload([this] { server->reload_tls(); });
  // Opening returns when the reload has opened the other end.
  std::ofstream nothing(options.tls.certfile);
  EXPECT_EQ(get("/health").result_int(), 200U);
  EXPECT_EQ(Client(server->port(), true).peer_name(), "first");
  nothing.close();
  reload.join();
  EXPECT_EQ(Client(server->port(), true).peer_name(), "first");
}

TEST_F(ServerTlsTest, BadFilesAreNamedAtTheStart) {
  const TlsOptions good = options.tls;
  const TlsOptions other{folder / "other-cert.pem", folder / "other-key.pem"};
  write_certificate(other, "other");
  std::ofstream(folder / "empty.pem");
  std::ofstream(folder / "text.pem") << "hello\n";
  const std::pair<TlsOptions, std::string> table[] = {
      {{good.certfile, ""}, "--ssl-keyfile is missing"},
      {{"", good.keyfile}, "--ssl-certfile is missing"},
      {{folder / "none.pem", good.keyfile}, "none.pem: No such file"},
      {{good.certfile, folder / "empty.pem"}, "empty.pem: the file is empty"},
      {{folder / "text.pem", good.keyfile}, "--ssl-certfile"},
      {{good.certfile, folder / "text.pem"}, "--ssl-keyfile"},
      {{good.certfile, other.keyfile}, "key values mismatch"},
  };
  for (const auto& [files, words] : table) {
    const auto loaded = load_tls(files);
    ASSERT_FALSE(loaded.ok()) << words;
    EXPECT_NE(loaded.error().message.find(words), std::string::npos) << loaded.error().message;
  }
}

}  // namespace
}  // namespace protean

#include "http/client_connection.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include "loadtest/load_generator.h"
#include "loadtest/scripted_server_for_test.h"

namespace protean::loadtest {
namespace {

namespace asio = boost::asio;

// Holds a PEM file with a key and a self-signed certificate for `name`; deletes it when destroyed.
class SelfSigned {
 public:
  explicit SelfSigned(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("loadtest-" + std::to_string(::getpid()) + ".pem")) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_version(certificate, 2);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    X509_EXTENSION* names =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, name.c_str());
    X509_add_ext(certificate, names, -1);
    X509_sign(certificate, key, EVP_sha256());
    std::FILE* file = std::fopen(path_.c_str(), "w");
    PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    PEM_write_X509(file, certificate);
    std::fclose(file);
    X509_EXTENSION_free(names);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  ~SelfSigned() { std::filesystem::remove(path_); }
  SelfSigned(const SelfSigned&) = delete;
  SelfSigned& operator=(const SelfSigned&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Sends one request over TLS to a server called `name` that has the certificate `pem`.
Outcome ask_over_tls(const std::string& name, const ClientTls& tls, const std::string& pem) {
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  std::thread server([&] {
    asio::ssl::context context(asio::ssl::context::tls_server);
    context.use_certificate_chain_file(pem);
    context.use_private_key_file(pem, asio::ssl::context::pem);
    asio::ssl::stream<asio::ip::tcp::socket> stream(acceptor.accept(), context);
    boost::system::error_code failed;
    stream.handshake(asio::ssl::stream_base::server, failed);
    std::string request;
    if (!failed) {
      asio::read_until(stream, asio::dynamic_buffer(request), "\r\n\r\n", failed);
    }
    if (!failed) {
      for (const ScriptedPiece& piece : fixed_delay_answer(0, 0, 3).pieces) {
        asio::write(stream, asio::buffer(piece.bytes), failed);
      }
    }
  });
  GeneratorOptions options;
  options.tls = tls;
  options.timeout_ns = 20 * kNsPerS;
  options.request.server =
      *parse_server_url(fmt::format("https://{}:{}", name, acceptor.local_endpoint().port()));
  EXPECT_TRUE(set_endpoint(options.request, "completions").ok());
  LoadGenerator generator(options, [sent = false]() mutable -> std::optional<ReadyRequest> {
    return std::exchange(sent, true) ? std::nullopt : std::optional(ReadyRequest{{}, "{}"});
  });
  const auto run = generator.run(nullptr);
  server.join();
  EXPECT_TRUE(run.ok()) << (run.ok() ? "" : run.error().message);
  return run.ok() ? run->records.at(0).outcome : Outcome::kInterrupted;
}

TEST(Connection, TrustsOnlyConfiguredCertificates) {
  const SelfSigned certificate("IP:127.0.0.1");
  const std::string pem = certificate.path();
  EXPECT_EQ(ask_over_tls("127.0.0.1", {.ca_file = pem}, pem), Outcome::kCompleted);
  EXPECT_EQ(ask_over_tls("127.0.0.1", {}, pem), Outcome::kTlsError);
  EXPECT_EQ(ask_over_tls("127.0.0.1", {.insecure = true}, pem), Outcome::kCompleted);
}

TEST(Connection, ChecksTheNameInTheCertificate) {
  const SelfSigned certificate("DNS:elsewhere.example");
  const std::string pem = certificate.path();
  EXPECT_EQ(ask_over_tls("localhost", {.ca_file = pem}, pem), Outcome::kTlsError);
  EXPECT_FALSE(make_client_tls({.ca_file = pem + ".none"}).ok());
}

}  // namespace
}  // namespace protean::loadtest

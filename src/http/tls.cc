#include "http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

namespace protean {
namespace {

namespace ssl = boost::asio::ssl;

constexpr std::string_view kHttp = "\x08http/1.1";

// Ends the handshake with an alert if the client offers protocols but not HTTP/1.1.
constexpr auto kChooseProtocol = [](SSL*, const unsigned char** out, unsigned char* out_size,
                                    const unsigned char* in, unsigned int in_size, void*) {
  unsigned char* chosen = nullptr;
  const int how =
      SSL_select_next_proto(&chosen, out_size, reinterpret_cast<const unsigned char*>(kHttp.data()),
                            static_cast<unsigned>(kHttp.size()), in, in_size);
  *out = chosen;
  return how == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
};

Error unusable(std::string_view flag, const std::string& path) {
  const unsigned long code = ERR_peek_last_error();
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return make_error(ErrorCode::kInvalidArgument, "{} {} is not a usable PEM file: {}", flag, path,
                    reason != nullptr ? reason : text.data());
}

Status check_readable(std::string_view flag, const std::string& path) {
  if (path.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "TLS needs both --ssl-certfile and --ssl-keyfile: {} is missing", flag);
  }
  errno = 0;
  std::ifstream file(path);
  if (!file || file.peek() == std::ifstream::traits_type::eof()) {
    return make_error(ErrorCode::kInvalidArgument, "cannot read {} {}: {}", flag, path,
                      errno != 0 ? std::strerror(errno) : "the file is empty");
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<ssl::context>> load_tls(const TlsOptions& options) {
  for (const auto& [flag, path] : {std::pair{"--ssl-certfile", &options.certfile},
                                   std::pair{"--ssl-keyfile", &options.keyfile}}) {
    if (Status readable = check_readable(flag, *path); !readable.ok()) {
      return readable.error();
    }
  }
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(
      native, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // saves memory of idle connections
  SSL_CTX_set_alpn_select_cb(native, kChooseProtocol, nullptr);
  // Fails on an encrypted key; OpenSSL's default asks on the terminal.
  SSL_CTX_set_default_passwd_cb(native, [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_certificate_chain_file(native, options.certfile.c_str()) != 1) {
    return unusable("--ssl-certfile", options.certfile);
  }
  if (SSL_CTX_use_PrivateKey_file(native, options.keyfile.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(native) != 1) {
    return unusable("--ssl-keyfile", options.keyfile);
  }
  return context;
}

}  // namespace protean

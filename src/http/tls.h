#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "base/result.h"

namespace protean {

// Files of a server's TLS: both, or neither for plain TCP.
struct TlsOptions {
  std::string certfile;  // PEM: the server's certificate, then its chain
  std::string keyfile;   // PEM: the certificate's private key, not encrypted
  bool enabled() const { return !certfile.empty() || !keyfile.empty(); }
};

// Makes the context for new connections: TLS 1.2 and 1.3, HTTP/1.1 by ALPN. Errors name the file
// and what is wrong with it.
Result<std::shared_ptr<boost::asio::ssl::context>> load_tls(const TlsOptions& options);

}  // namespace protean

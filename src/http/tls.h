#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "base/result.h"

namespace protean {

struct TlsOptions {
  std::string certfile;  // PEM: the server's certificate, then its chain
  std::string keyfile;   // PEM: its private key, not encrypted
  bool enabled() const { return !certfile.empty() || !keyfile.empty(); }
};

// What connections that come from now on are opened with. TLS 1.2 and 1.3, HTTP/1.1 by ALPN. An
// error names the file and what is wrong with it.
Result<std::shared_ptr<boost::asio::ssl::context>> load_tls(const TlsOptions& options);

}  // namespace protean

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hub/web_url.h"

namespace protean::hub {

// The proxies that the environment names.
struct ProxyRules {
  std::string https;   // URL of the proxy for https, from HTTPS_PROXY; empty: none
  std::string http;    // the same for http, from HTTP_PROXY
  std::string direct;  // NO_PROXY: hosts that are reached without a proxy, separated by commas
};

struct Proxy {
  WebUrl url;
  std::string credentials;  // value of Proxy-Authorization; empty: none
};

// Returns the proxy for a URL, or nothing if its host is reached directly. An entry of NO_PROXY is
// `*`, a host, a domain with its subdomains, or either with a port. Fails if the proxy's URL is
// not an http one.
Result<std::optional<Proxy>> proxy_for(const ProxyRules& rules, const WebUrl& url);

}  // namespace protean::hub

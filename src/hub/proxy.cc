#include "hub/proxy.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <vector>

namespace protean::hub {
namespace {

std::string lower_case(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  return begin == text.npos ? std::string_view()
                            : text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// True if one entry of NO_PROXY names the URL's host.
bool names_host(std::string_view entry, const WebUrl& url) {
  if (entry == "*") {
    return true;
  }
  std::string host = lower_case(entry);
  const bool bracketed = host.starts_with('[');
  const std::size_t colon = host.rfind(':');
  const bool is_address = !bracketed && std::count(host.begin(), host.end(), ':') > 1;  // IPv6
  if (!is_address && colon != host.npos && (!bracketed || colon > host.find(']'))) {
    if (host.substr(colon + 1) != url.port) {
      return false;
    }
    host.resize(colon);
  }
  if (bracketed) {
    host = host.substr(1, host.find(']') - 1);
  }
  while (host.starts_with('.') || host.starts_with("*.")) {
    host.erase(0, host.find('.') + 1);
  }
  return !host.empty() && (url.host == host || url.host.ends_with("." + host));
}

bool is_direct(std::string_view entries, const WebUrl& url) {
  while (!entries.empty()) {
    const std::size_t end = std::min(entries.find(','), entries.size());
    if (names_host(trimmed(entries.substr(0, end)), url)) {
      return true;
    }
    entries.remove_prefix(std::min(end + 1, entries.size()));
  }
  return false;
}

std::string base64(std::string_view text) {
  std::vector<unsigned char> encoded(4 * ((text.size() + 2) / 3) + 1);
  const int size =
      EVP_EncodeBlock(encoded.data(), reinterpret_cast<const unsigned char*>(text.data()),
                      static_cast<int>(text.size()));
  return {encoded.begin(), encoded.begin() + size};
}

}  // namespace

Result<std::optional<Proxy>> proxy_for(const ProxyRules& rules, const WebUrl& url) {
  const std::string& named = url.tls ? rules.https : rules.http;
  if (named.empty() || is_direct(rules.direct, url)) {
    return std::optional<Proxy>();
  }
  // "proxy:3128" means the same as "http://proxy:3128", as in other programs.
  const auto parsed = parse_web_url(named.find("://") == named.npos ? "http://" + named : named);
  if (!parsed.ok() || parsed->tls) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} (or ALL_PROXY) is not the URL of an http proxy, such as "
                      "http://proxy:3128",
                      url.tls ? "HTTPS_PROXY" : "HTTP_PROXY");
  }
  Proxy proxy{.url = *parsed, .credentials = {}};
  if (!proxy.url.userinfo.empty()) {
    proxy.credentials = "Basic " + base64(decode_percent(proxy.url.userinfo));
  }
  return std::optional(std::move(proxy));
}

}  // namespace protean::hub

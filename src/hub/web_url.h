#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace protean::hub {

// An http or https URL, taken apart for a request.
struct WebUrl {
  bool tls = true;
  std::string host;         // a name or an address; IPv6 without brackets
  std::string port;         // a number
  std::string host_header;  // value of the Host field
  std::string target;       // path and query, percent-encoded
  std::string userinfo;     // "USER:PASSWORD" as it is in the URL, percent-encoded
  std::string text;         // the URL without fragment

  bool same_origin(const WebUrl& other) const {
    return tls == other.tls && host == other.host && port == other.port;
  }
};

Result<WebUrl> parse_web_url(std::string_view text);

// Returns the URL that a Location field of an answer from `base` leads to.
Result<WebUrl> resolve_location(const WebUrl& base, std::string_view location);

// Percent-encodes all bytes but letters, digits, and "-._~".
std::string encode_path_word(std::string_view word);

// Percent-encodes each word of a path: slashes stay.
std::string encode_path(std::string_view path);

// Decodes percent-encoding. A '%' without two hexadecimal digits stays as it is.
std::string decode_percent(std::string_view text);

}  // namespace protean::hub

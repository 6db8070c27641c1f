#include "hub/web_url.h"

#include <fmt/format.h>

#include <boost/url/parse.hpp>
#include <boost/url/url.hpp>
#include <boost/url/url_view.hpp>
#include <cctype>
#include <charconv>
#include <cstddef>

namespace protean::hub {
namespace {

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

std::string encode(std::string_view text, bool keep_slashes) {
  std::string encoded;
  for (const char c : text) {
    if (is_unreserved(c) || (keep_slashes && c == '/')) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

// Encodes what a URL must not hold but some servers send: spaces, quotes, brackets, other bytes.
std::string repaired(std::string_view location) {
  std::string text;
  for (const char c : location) {
    const auto byte = static_cast<unsigned char>(c);
    const bool allowed = byte > ' ' && byte < 0x7f &&
                         std::string_view("\"<>\\^`{|}").find(c) == std::string_view::npos;
    text += allowed ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return text;
}

Error wrong_url(std::string_view text, std::string_view why) {
  return make_error(ErrorCode::kInvalidArgument, "'{}' is not a usable URL: {}",
                    text.substr(0, 200), why);
}

template <class Text>
std::string string_of(const Text& text) {
  return {text.begin(), text.end()};
}

Result<WebUrl> take_apart(const boost::urls::url_view& url) {
  const std::string text = string_of(url.buffer());
  if (url.scheme() != "http" && url.scheme() != "https") {
    return wrong_url(text, "the scheme is neither http nor https");
  }
  if (url.encoded_host().empty()) {
    return wrong_url(text, "it names no host");
  }
  WebUrl web{.tls = url.scheme() == "https"};
  web.host = string_of(url.host_address());
  for (char& c : web.host) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const std::string usual_port = web.tls ? "443" : "80";
  web.port = url.has_port() && !url.port().empty() ? string_of(url.port()) : usual_port;
  web.host_header = string_of(url.encoded_host());
  if (web.port != usual_port) {
    web.host_header += ":" + web.port;
  }
  web.userinfo = string_of(url.encoded_userinfo());
  const std::string path = string_of(url.encoded_path());
  web.target = (path.starts_with('/') ? "" : "/") + path;
  if (url.has_query()) {
    web.target += "?" + string_of(url.encoded_query());
  }
  web.text = text.substr(0, text.find('#'));
  return web;
}

}  // namespace

Result<WebUrl> parse_web_url(std::string_view text) {
  const auto parsed = boost::urls::parse_uri({text.data(), text.size()});
  if (!parsed) {
    return wrong_url(text, parsed.error().message());
  }
  return take_apart(*parsed);
}

Result<WebUrl> resolve_location(const WebUrl& base, std::string_view location) {
  const std::string text = repaired(location);
  const auto reference = boost::urls::parse_uri_reference(text);
  const auto from = boost::urls::parse_uri(base.text);
  if (!reference || !from) {
    return wrong_url(text, "an answer leads there");
  }
  boost::urls::url resolved;
  if (const auto done = boost::urls::resolve(*from, *reference, resolved); !done) {
    return wrong_url(text, done.error().message());
  }
  return take_apart(resolved);
}

std::string encode_path_word(std::string_view word) {
  return encode(word, false);
}

std::string encode_path(std::string_view path) {
  return encode(path, true);
}

std::string decode_percent(std::string_view text) {
  std::string decoded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    unsigned byte = 0;
    const char* digits = text.data() + at + 1;
    if (text[at] == '%' && at + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      at += 2;
    } else {
      decoded += text[at];
    }
  }
  return decoded;
}

}  // namespace protean::hub

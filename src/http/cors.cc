#include "http/cors.h"

#include <algorithm>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>
#include <utility>

namespace protean {
namespace {

constexpr std::string_view kMaxAgeS = "600";
constexpr std::string_view kReadable = "x-request-id, retry-after";
constexpr std::size_t kLongestHeaderList = 4096;

bool is_origin(const std::string& text) {
  const auto url = boost::urls::parse_uri(text);
  return url && !url->host().empty() && url->encoded_path().empty() && !url->has_query() &&
         !url->has_fragment() && !url->has_userinfo();
}

}  // namespace

Result<Cors> Cors::allow(std::vector<std::string> origins) {
  Cors cors;
  for (std::string& origin : origins) {
    if (origin == "*") {
      cors.any_ = true;
    } else if (is_origin(origin)) {
      cors.origins_.push_back(std::move(origin));
    } else {
      return make_error(
          ErrorCode::kInvalidArgument,
          "--allow-origin {} is not an origin: write scheme://host[:port] as a browser "
          "sends it, like https://chat.example.org, or *",
          origin);
    }
  }
  return cors;
}

bool Cors::admits(std::string_view origin) const {
  return any_ || std::find(origins_.begin(), origins_.end(), origin) != origins_.end();
}

HttpHeaders Cors::headers(const HttpCall& call) const {
  if (any_) {
    return {{"Access-Control-Allow-Origin", "*"},
            {"Access-Control-Expose-Headers", std::string(kReadable)}};
  }
  if (origins_.empty()) {
    return {};
  }
  HttpHeaders headers{{"Vary", "Origin"}};  // a cache must not give one page's answer to another
  const std::string_view origin = call.header("origin");
  if (!origin.empty() && admits(origin)) {
    headers.emplace_back("Access-Control-Allow-Origin", origin);
    headers.emplace_back("Access-Control-Expose-Headers", kReadable);
  }
  return headers;
}

void Cors::answer_preflight(const HttpCall& call, HttpReply& reply) const {
  const std::string_view origin = call.header("origin");
  if (call.method != "OPTIONS" || reply.status != 204 || origin.empty() || !admits(origin) ||
      call.header("access-control-request-method").empty()) {
    return;
  }
  for (const auto& [name, value] : HttpHeaders(reply.headers)) {
    if (name == "Allow") {
      reply.headers.emplace_back("Access-Control-Allow-Methods", value);
    }
  }
  // Allows every header that is asked for: SDKs send many of their own, and none has a privilege.
  const std::string_view asked = call.header("access-control-request-headers");
  if (!asked.empty() && asked.size() <= kLongestHeaderList) {
    reply.headers.emplace_back("Access-Control-Allow-Headers", asked);
  }
  reply.headers.emplace_back("Access-Control-Max-Age", kMaxAgeS);
}

}  // namespace protean

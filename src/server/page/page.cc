#include "server/page/page.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "server/page/page_assets.h"

namespace protean {
namespace {

// The scripts insert HTML only through DOMPurify's policy of trusted types.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify";

const PageAsset* find_asset(Page page, std::string_view file) {
  if (file.empty()) {
    file = page == Page::kChat ? "index.html" : "dashboard.html";
  }
  for (const PageAsset& asset : page_assets()) {
    if (asset.path == file && (page == Page::kChat ? asset.of_chat : asset.of_dashboard)) {
      return &asset;
    }
  }
  return nullptr;
}

// True unless the header leaves gzip out or gives it the weight 0, such as "q=0.0".
bool takes_gzip(std::string_view accept_encoding) {
  const std::size_t at = accept_encoding.find("gzip");
  if (at == std::string_view::npos) {
    return false;
  }
  const std::string_view rest = accept_encoding.substr(at);
  const std::string_view own = rest.substr(0, rest.find(','));
  const std::size_t weight = own.find("q=");
  return weight == std::string_view::npos ||
         own.find_first_of("123456789", weight) != std::string_view::npos;
}

}  // namespace

std::optional<HttpReply> page_reply(Page page, std::string_view file, const HttpCall& call) {
  const PageAsset* asset = find_asset(page, file);
  if (asset == nullptr) {
    return std::nullopt;
  }
  const bool gzip = takes_gzip(call.header("accept-encoding"));
  const std::string etag = fmt::format("\"{}{}\"", asset->hash, gzip ? "-gz" : "");
  HttpReply reply{.content_type = std::string(asset->content_type),
                  .headers = {{"ETag", etag},
                              {"Vary", "Accept-Encoding"},
                              {"Cache-Control",
                               file.empty() ? "no-cache" : "public, max-age=31536000, immutable"},
                              {"Content-Security-Policy", std::string(kPolicy)},
                              {"X-Content-Type-Options", "nosniff"},
                              {"Referrer-Policy", "no-referrer"},
                              {"Cross-Origin-Opener-Policy", "same-origin"}}};
  if (call.header("if-none-match").find(etag) != std::string_view::npos) {
    reply.status = 304;
    reply.content_type.clear();
    return reply;
  }
  if (gzip) {
    reply.headers.emplace_back("Content-Encoding", "gzip");
  }
  reply.body = gzip ? asset->gzip : asset->plain;
  return reply;
}

}  // namespace protean

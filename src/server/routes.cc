#include "server/routes.h"

#include <algorithm>
#include <array>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>

namespace protean {
namespace {

constexpr std::string_view kRead = "GET, HEAD, OPTIONS";
constexpr std::string_view kWrite = "POST, OPTIONS";
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kAssetPrefix = "/assets/";

struct Row {
  std::string_view path;
  Route route;
  std::string_view allow;
  bool needs_key;
  ErrorStyle errors = ErrorStyle::kOpenAi;
};

constexpr std::array kRoutes{
    Row{"/v1/chat/completions", Route::kChat, kWrite, true},
    Row{"/v1/completions", Route::kCompletions, kWrite, true},
    Row{"/v1/responses", Route::kResponses, kWrite, true},
    Row{"/v1/messages", Route::kMessages, kWrite, true, ErrorStyle::kAnthropic},
    Row{"/v1/messages/count_tokens", Route::kCountTokens, kWrite, true, ErrorStyle::kAnthropic},
    Row{"/v1/embeddings", Route::kEmbeddings, kWrite, true},
    Row{"/tokenize", Route::kTokenize, kWrite, true},
    Row{"/detokenize", Route::kDetokenize, kWrite, true},
    Row{"/load", Route::kLoad, kRead, false},
    Row{"/v1/models", Route::kModels, kRead, true},
    Row{"/health", Route::kHealth, kRead, false},
    Row{"/ping", Route::kPing, "GET, HEAD, POST, OPTIONS", false},
    Row{"/version", Route::kVersion, kRead, false},
    Row{"/metrics", Route::kMetrics, kRead, false},
    Row{"/", Route::kPage, kRead, false},
    Row{"/api/chat", Route::kOllama, kWrite, true, ErrorStyle::kOllama},
    Row{"/api/generate", Route::kOllama, kWrite, true, ErrorStyle::kOllama},
    Row{"/api/embed", Route::kOllama, kWrite, true, ErrorStyle::kOllama},
    Row{"/api/embeddings", Route::kOllama, kWrite, true, ErrorStyle::kOllama},
    Row{"/api/tags", Route::kOllama, kRead, true, ErrorStyle::kOllama},
    Row{"/api/ps", Route::kOllama, kRead, true, ErrorStyle::kOllama},
    Row{"/api/show", Route::kOllama, kWrite, true, ErrorStyle::kOllama},
    Row{"/api/pull", Route::kOllama, kWrite, true, ErrorStyle::kOllama},
    Row{"/api/version", Route::kOllama, kRead, false, ErrorStyle::kOllama},
};

}  // namespace

bool RouteMatch::allows(std::string_view method) const {
  for (std::string_view rest = allow; !rest.empty();) {
    const std::size_t end = std::min(rest.find(", "), rest.size());
    if (rest.substr(0, end) == method) {
      return true;
    }
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return false;
}

RouteMatch match_route(std::string_view target) {
  if (target == "*") {
    return {.route = Route::kAny, .pattern = "*", .allow = "OPTIONS"};
  }
  // Queries have no meaning here, and browsers write characters in them that a URI must not have.
  target = target.substr(0, target.find('?'));
  const auto url = boost::urls::parse_uri_reference(boost::core::string_view(target));
  if (!url) {
    return {};
  }
  std::string path = url->path();
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  for (const Row& row : kRoutes) {
    if (path == row.path) {
      return {.route = row.route,
              .pattern = row.path,
              .allow = row.allow,
              .needs_key = row.needs_key,
              .errors = row.errors};
    }
  }
  if (path.size() > kModelPrefix.size() && path.starts_with(kModelPrefix)) {
    return {Route::kModel, "/v1/models/{id}", kRead, true, path.substr(kModelPrefix.size())};
  }
  if (path.size() > kAssetPrefix.size() && path.starts_with(kAssetPrefix)) {
    return {Route::kPage, "/assets/{name}", kRead, false, path.substr(1)};
  }
  return {};
}

}  // namespace protean

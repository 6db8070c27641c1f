#pragma once

#include <string>
#include <string_view>

#include "http/api_error.h"

namespace protean {

enum class Route {
  kNone,
  kAny,  // OPTIONS *
  kChat,
  kCompletions,
  kResponses,
  kMessages,
  kCountTokens,
  kEmbeddings,
  kTokenize,
  kDetokenize,
  kLoad,
  kModels,
  kModel,
  kHealth,
  kPing,
  kVersion,
  kMetrics,
  kPage,   // the chat and its files
  kOllama  // its calls, told apart by their pattern
};

struct RouteMatch {
  Route route = Route::kNone;
  std::string_view pattern;   // such as "/v1/models/{id}", for metrics
  std::string_view allow;     // methods, separated by ", "
  bool needs_key = false;     // true if the API key is asked for
  std::string argument = {};  // the value of {id} or {name}, decoded
  ErrorStyle errors = ErrorStyle::kOpenAi;

  bool allows(std::string_view method) const;
};

// Finds the route of a request target. Ignores the query string and trailing slashes.
RouteMatch match_route(std::string_view target);

}  // namespace protean

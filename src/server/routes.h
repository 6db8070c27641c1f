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
  kMetrics
};

struct RouteMatch {
  Route route = Route::kNone;
  std::string_view pattern;   // "/v1/models/{id}": a label with few values
  std::string_view allow;     // methods, comma separated
  bool needs_key = false;     // the API key covers it
  std::string argument = {};  // what stands for {id}, decoded
  ErrorStyle errors = ErrorStyle::kOpenAi;

  bool allows(std::string_view method) const;
};

// What a request target means. Query strings are ignored, a trailing slash is forgiven.
RouteMatch match_route(std::string_view target);

}  // namespace protean

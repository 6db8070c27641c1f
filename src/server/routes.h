#pragma once

#include <optional>
#include <span>
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
  kScore,
  kRerank,
  kLlamaCompletion,
  kLlamaInfill,
  kProps,
  kSlots,
  kTokenize,
  kDetokenize,
  kLoad,
  kModels,
  kModel,
  kHealth,
  kPing,
  kVersion,
  kMetrics,
  kOpenApi,
  kDocs,
  kPage,   // the chat and its files
  kOllama  // its calls, told apart by their pattern
};

// A path that the public port answers. {id} and {name} stand for the rest of a path.
struct RouteRow {
  std::string_view path;
  Route route = Route::kNone;
  std::string_view allow;  // methods, separated by ", "
  bool needs_key = false;  // true if the API key is asked for
  std::string_view about;  // one sentence for people who write a client
  ErrorStyle errors = ErrorStyle::kOpenAi;
};
std::span<const RouteRow> routes();

struct RouteMatch {
  Route route = Route::kNone;
  std::string_view pattern;   // such as "/v1/models/{id}", for metrics
  std::string_view allow;     // methods, separated by ", "
  bool needs_key = false;     // true if the API key is asked for
  std::string argument = {};  // the value of {id} or {name}, decoded
  ErrorStyle errors = ErrorStyle::kOpenAi;

  bool allows(std::string_view method) const;
};

// Finds the route of a request target. Ignores the query string and trailing slashes. If there is
// none, says only in which form the client reads errors.
RouteMatch match_route(std::string_view target);

// Returns the decoded value of `name` in a target's query; nothing if the query does not have it.
std::optional<std::string> query_value(std::string_view target, std::string_view name);

}  // namespace protean

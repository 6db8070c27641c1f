#include "server/routes.h"

#include <algorithm>
#include <array>
#include <boost/url/parse.hpp>
#include <boost/url/pct_string_view.hpp>
#include <boost/url/url_view.hpp>
#include <utility>

namespace protean {
namespace {

constexpr std::string_view kRead = "GET, HEAD, OPTIONS";
constexpr std::string_view kWrite = "POST, OPTIONS";
constexpr std::array kRoutes{
    RouteRow{"/v1/chat/completions", Route::kChat, kWrite, true, "Answers a chat."},
    RouteRow{"/v1/completions", Route::kCompletions, kWrite, true, "Continues texts."},
    RouteRow{"/v1/responses", Route::kResponses, kWrite, true,
             "Answers a chat in the form of OpenAI's Responses; nothing is stored."},
    RouteRow{"/v1/messages", Route::kMessages, kWrite, true,
             "Answers a chat in the form of Anthropic's Messages.", ErrorStyle::kAnthropic},
    RouteRow{"/v1/messages/count_tokens", Route::kCountTokens, kWrite, true,
             "Counts the tokens of a prompt.", ErrorStyle::kAnthropic},
    RouteRow{"/v1/embeddings", Route::kEmbeddings, kWrite, true,
             "Returns a vector of unit length for each text."},
    RouteRow{"/v1/score", Route::kScore, kWrite, true,
             "Scores pairs of texts by the cosine of their embeddings."},
    RouteRow{"/score", Route::kScore, kWrite, true, "The same as /v1/score."},
    RouteRow{"/v1/rerank", Route::kRerank, kWrite, true,
             "Orders documents by the cosine of their embeddings with a query's."},
    RouteRow{"/v2/rerank", Route::kRerank, kWrite, true, "The same as /v1/rerank."},
    RouteRow{"/rerank", Route::kRerank, kWrite, true, "The same as /v1/rerank."},
    RouteRow{"/completion", Route::kLlamaCompletion, kWrite, true,
             "Continues a text in the form of llama-server."},
    RouteRow{"/infill", Route::kLlamaInfill, kWrite, true,
             "Fills in code between a prefix and a suffix, in the form of llama-server."},
    RouteRow{"/props", Route::kProps, kRead, true,
             "Describes the model in the form of llama-server; ?model= names one of several."},
    RouteRow{"/slots", Route::kSlots, kRead, true,
             "Lists the requests in work in the form of llama-server."},
    RouteRow{"/tokenize", Route::kTokenize, kWrite, true, "Turns a text or a chat into tokens."},
    RouteRow{"/detokenize", Route::kDetokenize, kWrite, true, "Turns tokens into text."},
    RouteRow{"/load", Route::kLoad, kRead, false, "Returns the number of requests in work."},
    RouteRow{"/v1/models", Route::kModels, kRead, true, "Lists the models."},
    RouteRow{"/v1/models/{id}", Route::kModel, kRead, true, "Describes a model."},
    RouteRow{"/health", Route::kHealth, kRead, false, "Says whether requests are answered."},
    RouteRow{"/ping", Route::kPing, "GET, HEAD, POST, OPTIONS", false,
             "Says whether requests are answered."},
    RouteRow{"/version", Route::kVersion, kRead, false, "Returns the version of the server."},
    RouteRow{"/metrics", Route::kMetrics, kRead, false,
             "Returns metrics in Prometheus' text format."},
    RouteRow{"/openapi.json", Route::kOpenApi, kRead, false, "Returns this description."},
    RouteRow{"/docs", Route::kDocs, kRead, false, "Shows this description as a page."},
    RouteRow{"/", Route::kPage, kRead, false, "Shows a page to chat with the model."},
    RouteRow{"/assets/{name}", Route::kPage, kRead, false, "Returns a file of the page."},
    RouteRow{"/api/chat", Route::kOllama, kWrite, true, "Answers a chat.", ErrorStyle::kOllama},
    RouteRow{"/api/generate", Route::kOllama, kWrite, true, "Answers or continues a text.",
             ErrorStyle::kOllama},
    RouteRow{"/api/embed", Route::kOllama, kWrite, true, "Returns a vector for each text.",
             ErrorStyle::kOllama},
    RouteRow{"/api/embeddings", Route::kOllama, kWrite, true,
             "Returns the vector of a text (older form).", ErrorStyle::kOllama},
    RouteRow{"/api/tags", Route::kOllama, kRead, true, "Lists the models.", ErrorStyle::kOllama},
    RouteRow{"/api/ps", Route::kOllama, kRead, true, "Lists the models in memory.",
             ErrorStyle::kOllama},
    RouteRow{"/api/show", Route::kOllama, kWrite, true, "Describes a model.", ErrorStyle::kOllama},
    RouteRow{"/api/pull", Route::kOllama, kWrite, true, "Succeeds for a model of the server.",
             ErrorStyle::kOllama},
    RouteRow{"/api/version", Route::kOllama, kRead, false,
             "Returns the version of Ollama's API that is followed.", ErrorStyle::kOllama},
};

// Returns true if the path is the row's; then `argument` is what stands for {id} or {name}.
bool matches(const RouteRow& row, const std::string& path, std::string& argument) {
  const std::size_t open = row.path.find('{');
  if (open == std::string_view::npos) {
    return path == row.path;
  }
  const std::string_view prefix = row.path.substr(0, open);
  if (path.size() <= prefix.size() || !path.starts_with(prefix)) {
    return false;
  }
  // The files of a page are named from the root.
  argument = row.route == Route::kPage ? path.substr(1) : path.substr(prefix.size());
  return true;
}

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
  std::string argument;
  for (const RouteRow& row : kRoutes) {
    if (matches(row, path, argument)) {
      return {.route = row.route,
              .pattern = row.path,
              .allow = row.allow,
              .needs_key = row.needs_key,
              .argument = std::move(argument),
              .errors = row.errors};
    }
  }
  return {.errors = path.starts_with("/api/") ? ErrorStyle::kOllama : ErrorStyle::kOpenAi};
}

std::span<const RouteRow> routes() {
  return kRoutes;
}

std::optional<std::string> query_value(std::string_view target, std::string_view name) {
  const std::size_t begin = target.find('?');
  std::string_view rest = begin == std::string_view::npos ? "" : target.substr(begin + 1);
  while (!rest.empty()) {
    const std::string_view field = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), field.size() + 1));
    const std::size_t equals = field.find('=');
    if (field.substr(0, equals) == name) {
      const std::string_view value =
          equals == std::string_view::npos ? "" : field.substr(equals + 1);
      const auto text = boost::urls::make_pct_string_view(boost::core::string_view(value));
      return text ? text->decode() : std::string(value);  // as it is if malformed
    }
  }
  return std::nullopt;
}

}  // namespace protean

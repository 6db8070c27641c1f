#include "server/models.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <exception>
#include <utility>

#include "base/check.h"
#include "server/call/named_model.h"
#include "server/ollama/ollama_call.h"
#include "server/ollama/ollama_models.h"
#include "server/openapi/docs_page.h"
#include "server/openapi/openapi_document.h"
#include "server/page/page.h"

namespace protean {
namespace {

namespace json = boost::json;

HttpReply no_such_path(const HttpCall& call) {
  return error_reply(
      {.status = 404, .message = fmt::format("there is nothing at {}", printable(call.target))},
      match_route(call.target).errors, call.request_id);
}

ApiError not_ready(ServerState state) {
  return {.status = 503,
          .message = state == ServerState::kLoading
                         ? "the model is being loaded: try again later"
                         : "the server is shutting down: send requests elsewhere"};
}

// Returns a model's description with the fields that OpenAI's and Anthropic's clients read.
json::object model_object(const std::string& name, const Service& service) {
  const ServedModel& model = service.model();
  const std::int64_t created = service.created_s();
  return {{"id", name},
          {"type", "model"},
          {"display_name", name},
          {"created_at", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(created))},
          {"object", "model"},
          {"created", created},
          {"owned_by", "protean"},
          {"root", model.names.front()},
          {"parent", nullptr},
          {"max_model_len", model.max_model_len},
          {"embedding_size", model.embedding_size},
          {"embedding_pooling", model.pooling == Pooling::kLast ? "last" : "mean"},
          {"permission", json::array()}};
}

// Returns the name that a body gives its model; empty if it gives none.
std::string named_model(const RouteMatch& match, const std::string& body) {
  std::string name = text_field(body, "model").value_or("");
  if (match.route != Route::kOllama) {
    return name;
  }
  if (name.empty()) {  // as older clients of /api/show and /api/pull write it
    name = text_field(body, "name").value_or("");
  }
  return without_latest(std::move(name));
}

// An answer that comes later keeps its model's service.
Service::Answer kept(Service::Answer answer, const Service& service) {
  if (const auto* growing = std::get_if<std::shared_ptr<GrowingAnswer>>(&answer)) {
    (*growing)->owner = service.owner.lock();
  } else if (const auto* pending = std::get_if<std::shared_ptr<PendingReply>>(&answer)) {
    (*pending)->owner = service.owner.lock();
  }
  return answer;
}

HttpReply ollama_list(const std::vector<Service*>& services, bool running) {
  json::array all;
  for (const Service* service : services) {
    if (running && service->residence() != Residence::kAwake) {
      continue;
    }
    const auto due_ns = service->sleep_due_ns();
    const auto expires_s =
        due_ns ? std::optional((*due_ns + service->unix_offset_ns()) / kNsPerS) : std::nullopt;
    const json::array some = running ? ollama_running(service->model(), expires_s)
                                     : ollama_tags(service->model(), service->created_s());
    all.insert(all.end(), some.begin(), some.end());
  }
  return {.body = json::serialize(json::object{{"models", std::move(all)}})};
}

}  // namespace

Models::Models(std::vector<Service*> services, ApiKeys keys)
    : services_(std::move(services)), keys_(std::move(keys)) {
  check(!services_.empty(), "a server has a model");
}

Service* Models::find(std::string_view name) const {
  const auto found = std::find_if(services_.begin(), services_.end(), [&](const Service* service) {
    const std::vector<std::string>& names = service->model().names;
    return std::find(names.begin(), names.end(), name) != names.end();
  });
  return found == services_.end() ? nullptr : *found;
}

void Models::replace(const Service& service, Service& by) {
  const auto found = std::find(services_.begin(), services_.end(), &service);
  check(found != services_.end(), "a service that is replaced serves");
  *found = &by;
}

ApiError Models::unknown(std::string_view shown) const {
  std::vector<std::string> names;
  for (const Service* service : services_) {
    names.insert(names.end(), service->model().names.begin(), service->model().names.end());
  }
  return unknown_model(shown, names);
}

std::optional<HttpReply> Models::refuse_early(const HttpCall& call) const {
  const RouteMatch match = match_route(call.target);
  if (match.route == Route::kNone) {
    return no_such_path(call);
  }
  if (call.method == "OPTIONS") {
    return HttpReply{
        .status = 204, .content_type = "", .headers = {{"Allow", std::string(match.allow)}}};
  }
  if (!match.allows(call.method)) {
    HttpReply reply =
        error_reply({.status = 405,
                     .message = fmt::format("{} does not allow {}, only {}", match.pattern,
                                            printable(call.method), match.allow)},
                    match.errors, call.request_id);
    reply.headers.emplace_back("Allow", match.allow);
    return reply;
  }
  if (match.needs_key && !keys_.admit(call)) {
    return error_reply({.status = 401,
                        .message = "the API key is missing or wrong: send it as Authorization: "
                                   "Bearer KEY or as x-api-key: KEY"},
                       match.errors, call.request_id);
  }
  if (match.needs_key && state() != ServerState::kReady) {
    return error_reply(not_ready(state()), match.errors, call.request_id);
  }
  if (!call.content_encoding.empty() && call.content_encoding != "identity") {
    return error_reply({.status = 415,
                        .message = fmt::format("the content encoding {} is not supported: send the "
                                               "body as it is",
                                               printable(call.content_encoding))},
                       match.errors, call.request_id);
  }
  return std::nullopt;
}

Models::Answer Models::handle(const HttpCall& call) {
  try {
    return answer(call);
  } catch (const std::exception&) {
    return error_reply(error_of_current_exception(), match_route(call.target).errors,
                       call.request_id);
  }
}

Models::Answer Models::answer(const HttpCall& call) {
  const RouteMatch match = match_route(call.target);
  switch (match.route) {
    case Route::kModels:
      return list_reply();
    case Route::kModel:
      return model_reply(match.argument);
    case Route::kLoad:
      return load_reply();
    case Route::kHealth:
    case Route::kPing:
      return health_reply();
    case Route::kVersion:
      return HttpReply{
          .body = json::serialize(json::object{{"version", services_.front()->version()}})};
    case Route::kMetrics:
      return HttpReply{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                       .body = Service::metrics_text(services_) + counts_.text()};
    case Route::kProps:
    case Route::kSlots:
      return llama_reply(match, call);
    case Route::kOpenApi:
      return HttpReply{.body = json::serialize(openapi_document(services_.front()->version()))};
    case Route::kDocs:
      return docs_page(openapi_document(services_.front()->version()));
    case Route::kPage: {
      std::optional<HttpReply> file = page_reply(Page::kChat, match.argument, call);
      return file ? *std::move(file) : no_such_path(call);
    }
    case Route::kOllama:
      if (match.pattern == "/api/tags" || match.pattern == "/api/ps") {
        return ollama_list(services_, match.pattern == "/api/ps");
      }
      return answer_by_body(match, call);
    default:
      return answer_by_body(match, call);
  }
}

// A server of one model leaves it to the service to refuse other names, which saves a look into the
// body.
Models::Answer Models::answer_by_body(const RouteMatch& match, const HttpCall& call) const {
  if (services_.size() == 1) {
    return kept(services_.front()->handle(call), *services_.front());
  }
  const std::string name = named_model(match, call.body);
  Service* service = name.empty() ? services_.front() : find(name);
  if (service == nullptr) {
    return error_reply(unknown(excerpt(name)), match.errors, call.request_id);
  }
  return kept(service->handle(call), *service);
}

HttpReply Models::list_reply() const {
  json::array data;
  for (const Service* service : services_) {
    for (const std::string& name : service->model().names) {
      data.push_back(model_object(name, *service));
    }
  }
  json::value first = data.front().at("id");
  json::value last = data.back().at("id");
  return {.body = json::serialize(json::object{{"object", "list"},
                                               {"data", std::move(data)},
                                               {"has_more", false},
                                               {"first_id", std::move(first)},
                                               {"last_id", std::move(last)}})};
}

HttpReply Models::model_reply(const std::string& id) const {
  const Service* service = find(id);
  if (service == nullptr) {
    return error_reply(unknown(printable(id)));  // a path may not be UTF-8
  }
  return {.body = json::serialize(model_object(id, *service))};
}

// Answers llama-server's calls about a model, the first one unless ?model= names another.
HttpReply Models::llama_reply(const RouteMatch& match, const HttpCall& call) const {
  const std::optional<std::string> name = query_value(call.target, "model");
  const Service* service = name ? find(*name) : services_.front();
  if (service == nullptr) {
    return error_reply(unknown(printable(*name)));
  }
  return {.body = match.route == Route::kProps ? json::serialize(service->properties_json())
                                               : json::serialize(service->slots_json())};
}

HttpReply Models::load_reply() const {
  std::int64_t outstanding = 0;
  for (const Service* service : services_) {
    outstanding += service->outstanding();
  }
  return {.body = json::serialize(json::object{{"server_load", outstanding}})};
}

bool Models::in_service() const {
  return !std::all_of(services_.begin(), services_.end(), [this](const Service* service) {
    return service->out_of_service() && !is_placed_anew(*service);
  });
}

HttpReply Models::health_reply() const {
  if (state() != ServerState::kReady) {
    return error_reply(not_ready(state()));
  }
  if (!in_service()) {
    return error_reply(
        {.status = 503,
         .message = "no replica is in service, because all devices have failed: start the server "
                    "again"});
  }
  return {.body = R"({"status":"ok"})"};
}

void Models::set_state(ServerState state) {
  for (Service* service : services_) {
    service->set_state(state);
  }
}

ErrorStyle Models::error_style(const HttpCall& call) const {
  return match_route(call.target).errors;
}

bool Models::routine(const HttpCall& call, int status) const {
  const RouteMatch match = match_route(call.target);
  const bool asks_health = match.route == Route::kHealth || match.route == Route::kPing;
  return !match.needs_key && (status < 400 || (asks_health && status == 503));
}

void Models::count(const HttpCall& call, int status) {
  const RouteMatch match = match_route(call.target);
  count(match.route == Route::kNone ? "none" : match.pattern, call.method, status);
}

void Models::count(std::string_view handler, std::string_view method, int status) {
  constexpr std::array kMethods{"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"};
  const bool known = std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end();
  counts_.add(handler, known ? method : "other", status);
}

}  // namespace protean

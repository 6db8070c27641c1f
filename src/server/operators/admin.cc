#include "server/operators/admin.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/url/pct_string_view.hpp>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/call/json_body.h"
#include "server/operators/configurations.h"
#include "server/operators/form_json.h"
#include "server/operators/groups_json.h"
#include "server/operators/log_level.h"
#include "server/operators/priority.h"
#include "server/page/page.h"

namespace protean {
namespace {

namespace json = boost::json;

struct AdminRoute {
  std::string_view path;
  std::string_view allow;
  bool needs_key = true;
};

constexpr std::array kAdminRoutes{
    AdminRoute{"/health", "GET, HEAD, OPTIONS"},
    AdminRoute{"/metrics", "GET, HEAD, OPTIONS"},
    AdminRoute{"/admin/models", "GET, HEAD, POST, DELETE, OPTIONS"},
    AdminRoute{"/admin/fleet", "GET, HEAD, PUT, OPTIONS"},
    AdminRoute{"/admin/fleet/migrate", "PUT, OPTIONS"},
    AdminRoute{"/admin/form", "GET, HEAD, PUT, OPTIONS"},
    AdminRoute{"/admin/intent", "GET, HEAD, PUT, DELETE, OPTIONS"},
    AdminRoute{"/admin/intent/plan", "GET, HEAD, OPTIONS"},
    AdminRoute{"/admin/configurations", "GET, HEAD, OPTIONS"},
    AdminRoute{"/admin/priority", "GET, HEAD, PUT, OPTIONS"},
    AdminRoute{"/admin/profile", "GET, HEAD, POST, DELETE, OPTIONS"},
    AdminRoute{"/admin/morphs", "GET, HEAD, OPTIONS"},
    AdminRoute{"/admin/events", "GET, OPTIONS"},
    AdminRoute{"/admin/recording", "GET, HEAD, OPTIONS"},
    AdminRoute{"/admin/drain", "POST, OPTIONS"},
    AdminRoute{"/admin/sleep", "POST, OPTIONS"},
    AdminRoute{"/admin/wake", "POST, OPTIONS"},
    AdminRoute{"/admin/log-level", "GET, HEAD, PUT, OPTIONS"},
    // The page has no secret: it asks for the key and sends it with its calls.
    AdminRoute{"/", "GET, HEAD, OPTIONS", false},
    AdminRoute{"/dashboard", "GET, HEAD, OPTIONS", false},
    AdminRoute{"/assets/", "GET, HEAD, OPTIONS", false},
};

std::string_view path_of(std::string_view target) {
  return target.substr(0, target.find('?'));
}

const AdminRoute* find_route(std::string_view target) {
  const std::string_view path = path_of(target);
  for (const AdminRoute& row : kAdminRoutes) {
    if (path == row.path || (row.path == "/assets/" && path.starts_with(row.path))) {
      return &row;
    }
  }
  return nullptr;
}

bool allows(std::string_view list, std::string_view method) {
  return (", " + std::string(list) + ",").find(", " + std::string(method) + ",") !=
         std::string::npos;
}

// True if the query has a field other than `model`.
bool asks_more(std::string_view target) {
  const std::size_t begin = target.find('?');
  std::string_view rest = begin == std::string_view::npos ? "" : target.substr(begin + 1);
  return !rest.empty() && !(rest.starts_with("model=") && rest.find('&') == std::string_view::npos);
}

json::object shown_load(const Observation& seen) {
  return {{"running", seen.running},
          {"waiting", seen.waiting},
          {"kv_blocks", seen.kv_blocks},
          {"kv_blocks_used", seen.kv_blocks_used},
          {"preemptions_total", seen.preemptions_total}};
}

HttpReply nothing_at(const HttpCall& call) {
  return error_reply(
      {.status = 404,
       .message = fmt::format("there is nothing at {} on the admin port", printable(call.target))});
}

// Answers a call of the dashboard's page or of one of its files.
HttpReply file_reply(const HttpCall& call) {
  const std::string_view path = path_of(call.target);
  if (path == "/") {  // relative, so that a path prefix stays
    return {.status = 307, .content_type = "", .headers = {{"Location", "dashboard"}}};
  }
  const std::string_view file = path == "/dashboard" ? std::string_view() : path.substr(1);
  std::optional<HttpReply> reply = page_reply(Page::kDashboard, file, call);
  return reply ? *std::move(reply) : nothing_at(call);
}

// Returns the replica that the query names. A server with one replica needs no name.
Checked<ReplicaId> replica_of(const Service& service, const HttpCall& call) {
  const auto text = query_value(call.target, "replica");
  const int count = service.replicas();
  if (!text && count == 1) {
    return ReplicaId{0};
  }
  int number = -1;
  if (text) {
    const auto [end, failed] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (failed == std::errc() && end == text->data() + text->size() && number >= 0 &&
        number < count) {
      return ReplicaId{number};
    }
  }
  return ApiError{
      .message = fmt::format(
          "{}: this server has {} replica{}, name one with "
          "?replica=0{}",
          text ? fmt::format("replica={}", printable(*text)) : "no replica is named", count,
          count == 1 ? "" : "s", count == 1 ? "" : fmt::format(" to {}", count - 1)),
      .param = "replica"};
}

// Reads {"from": 0, "to": 1, "requests": 4}; all requests if their number is left out.
HttpHandler::Answer migrate(Service& service, const HttpCall& call) {
  const Checked<json::value> parsed = parse_json_body(call.body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return error_reply(*error);
  }
  const json::value& body = std::get<json::value>(parsed);
  const json::object empty;
  const json::object& fields = body.is_object() ? body.as_object() : empty;
  constexpr int kAll = 1 << 20;
  const auto number = [&](std::string_view name, int most) {
    const json::value* value = fields.if_contains(name);
    return value != nullptr && value->is_int64() && value->get_int64() >= 0 &&
                   value->get_int64() <= most
               ? static_cast<int>(value->get_int64())
               : -1;
  };
  const int last = service.replicas() - 1;
  const int from = number("from", last);
  const int to = number("to", last);
  const bool counted = fields.contains("requests");
  const int requests = counted ? number("requests", kAll) : kAll;
  if (last == 0) {
    return error_reply({.message =
                            "requests move between replicas, and the model has one: serve it with "
                            "--data-parallel-size 2, or more"});
  }
  if (from < 0 || to < 0 || from == to || requests < 1 || fields.size() != (counted ? 3U : 2U)) {
    return error_reply(
        {.message = fmt::format(R"(send {{"from": 0, "to": 1, "requests": 4}} with two replicas )"
                                "from 0 to {}; without requests, all that decode move",
                                last)});
  }
  if (service.state() != ServerState::kReady) {
    return error_reply({.status = 503, .message = "the server is loading or draining: try later"});
  }
  return service.ask_migration(ReplicaId{from}, ReplicaId{to}, requests);
}

HttpHandler::Answer want_groups(Service& service, const HttpCall& call) {
  if (service.state() != ServerState::kReady) {
    return error_reply({.status = 503, .message = "the server is loading or draining: try later"});
  }
  Checked<GroupWish> wish = read_group_wish(call.body);
  if (const ApiError* error = std::get_if<ApiError>(&wish)) {
    return error_reply(*error);
  }
  return service.ask_groups(std::get<GroupWish>(std::move(wish)));
}

HttpHandler::Answer want_form(Service& service, ReplicaId replica, const HttpCall& call) {
  if (service.state() != ServerState::kReady) {
    return error_reply(
        {.status = 503,
         .message = "the form cannot be changed while the server is loading or draining"});
  }
  const auto layers = static_cast<int>(service.fleet().form(replica).form.layer_precision.size());
  Checked<FormWish> wish = read_form_wish(call.body, layers);
  if (const ApiError* error = std::get_if<ApiError>(&wish)) {
    return error_reply(*error);
  }
  return service.ask_form(replica, std::get<FormWish>(std::move(wish)));
}

HttpReply recording_reply(const Service& service, const HttpCall& call) {
  double minutes = 60;
  if (asks_more(call.target)) {
    const std::string text = query_value(call.target, "minutes").value_or("");
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), minutes);
    if (failed != std::errc{} || end != text.data() + text.size() ||
        !(minutes > 0 && minutes <= 60)) {
      return error_reply({.message = "minutes is a number above 0 and up to 60, like ?minutes=10",
                          .param = "minutes"});
    }
  }
  return {.content_type = "application/jsonl",
          .body = service.recording(minutes),
          .headers = {{"Content-Disposition", "attachment; filename=\"protean-recording.jsonl\""}}};
}

HttpReply changed_reply(const Checked<std::string>& name, std::string_view residence) {
  if (const ApiError* error = std::get_if<ApiError>(&name)) {
    return error_reply(*error);
  }
  return {.status = 202,
          .body = json::serialize(
              json::object{{"model", std::get<std::string>(name)}, {"residence", residence}})};
}

HttpReply begun_reply(const Checked<json::object>& begun) {
  if (const ApiError* error = std::get_if<ApiError>(&begun)) {
    return error_reply(*error);
  }
  return {.status = 202, .body = json::serialize(std::get<json::object>(begun))};
}

HttpReply residence_reply(const Service& service) {
  return {.status = 202,
          .body = json::serialize(json::object{{"model", service.model().names.front()},
                                               {"residence", to_string(service.residence())}})};
}

HttpReply wake_reply(Service& service) {
  service.wake();
  return residence_reply(service);
}

HttpReply form_reply(const Service& service, ReplicaId replica) {
  json::object shown = service.state_json(replica);
  shown.emplace("now", shown_load(service.fleet().seen(replica)));
  return {.body = json::serialize(shown)};
}

HttpReply fleet_reply(const Service& service) {
  const FleetReport& fleet = service.fleet();
  json::array replicas;
  for (int number = 0; number < service.replicas(); ++number) {
    const ReplicaId replica{number};
    const ReplicaId by = fleet.serving()[static_cast<std::size_t>(number)];
    const Observation seen = fleet.seen(replica);
    replicas.push_back({{"replica", number},
                        {"serves_in", by.value},
                        {"form", by == replica ? json::value(to_string(fleet.form(replica).form))
                                               : json::value(nullptr)},
                        {"now", shown_load(seen)},
                        {"bubble_share", shown_bubbles(seen.devices)},
                        {"routed_total", seen.accepted_total},
                        {"adopted_total", seen.adopted_total},
                        {"adopted_with_kv_total", seen.adopted_with_kv_total},
                        {"released_total", seen.released_total}});
  }
  json::array migrations;
  for (const MigratingRequests& some : fleet.migrations()) {
    migrations.push_back({{"from", some.from.value},
                          {"to", some.to.value},
                          {"moving", some.moving},
                          {"queued", some.queued}});
  }
  json::object shown{{"router", service.router()},
                     {"replicas", std::move(replicas)},
                     {"migrations", std::move(migrations)}};
  if (fleet.replicas_wanted()) {
    shown["replicas_wanted"] = fleet.replicas_wanted()->wanted;
  }
  if (fleet.groups() != nullptr) {
    for (auto& [name, value] : shown_groups(fleet.groups_now(), service.unix_offset_ns())) {
      shown[name] = std::move(value);
    }
  }
  return {.body = json::serialize(shown)};
}

}  // namespace

std::optional<HttpReply> Admin::refuse_early(const HttpCall& call) const {
  const AdminRoute* row = find_route(call.target);
  if ((row == nullptr || row->needs_key) && !setting_.keys.admit(call)) {
    return error_reply({.status = 401,
                        .message = "the admin key is missing or wrong: send it as Authorization: "
                                   "Bearer KEY"});
  }
  if (row == nullptr) {
    return nothing_at(call);
  }
  if (call.method == "OPTIONS") {
    return HttpReply{
        .status = 204, .content_type = "", .headers = {{"Allow", std::string(row->allow)}}};
  }
  if (!allows(row->allow, call.method)) {
    HttpReply reply = error_reply(
        {.status = 405, .message = fmt::format("{} allows only {}", row->path, row->allow)});
    reply.headers.emplace_back("Allow", row->allow);
    return reply;
  }
  return std::nullopt;
}

HttpHandler::Answer Admin::handle(const HttpCall& call) {
  const AdminRoute& row = *find_route(call.target);
  if (!row.needs_key) {
    return file_reply(call);
  }
  if (row.path == "/admin/models") {
    return call.method == "POST" || call.method == "DELETE" ? change_reply(call) : models_reply();
  }
  if (row.path == "/admin/log-level") {
    return log_level_reply(call);
  }
  if (row.path == "/admin/drain") {
    log::info("drained by the admin port");
    setting_.drain();
    return HttpReply{.status = 202, .body = R"({"status":"draining"})"};
  }
  if (!row.path.starts_with("/admin/")) {
    return models_.handle(call);  // health and metrics are the same on both ports
  }
  Service* service = models_.services().front();
  if (const auto name = query_value(call.target, "model")) {
    service = models_.find(*name);
    if (service == nullptr) {
      return error_reply(models_.unknown(excerpt(*name)));
    }
  }
  return answer_of(row.path, call, *service);
}

// Answers a call that concerns one model.
HttpHandler::Answer Admin::answer_of(std::string_view path, const HttpCall& call,
                                     Service& service) {
  if (path == "/admin/fleet") {
    return call.method == "PUT" ? want_groups(service, call) : fleet_reply(service);
  }
  if (path == "/admin/fleet/migrate") {
    return migrate(service, call);
  }
  if (path == "/admin/events") {
    return service.watch();
  }
  if (path == "/admin/sleep" || path == "/admin/wake") {
    return path == "/admin/sleep" ? sleep_reply(service) : wake_reply(service);
  }
  if (path == "/admin/intent") {
    return intent_reply(call, service);
  }
  if (path == "/admin/priority") {
    return priority_reply(call, service);
  }
  if (path == "/admin/profile") {
    return profile_reply(call, service);
  }
  if (path == "/admin/intent/plan") {
    return plan_reply(service);
  }
  if (path == "/admin/configurations") {
    return configurations_reply(call, service, setting_.residents.configurations_of(service));
  }
  if (path == "/admin/recording") {
    return recording_reply(service, call);
  }
  const Checked<ReplicaId> replica = replica_of(service, call);
  if (const ApiError* error = std::get_if<ApiError>(&replica)) {
    return error_reply(*error);
  }
  const ReplicaId named = std::get<ReplicaId>(replica);
  if (path == "/admin/form") {
    return call.method == "PUT" ? want_form(service, named, call) : form_reply(service, named);
  }
  check(path == "/admin/morphs", "each path of the port is answered");
  const json::array history = shown_history(*service.fleet().form(named).history, service.now_ns(),
                                            static_cast<double>(service.unix_time_s()));
  return HttpReply{.body = json::serialize(json::object{{"morphs", history}})};
}

// A model that sleeps already, or is about to, is asked for nothing new.
HttpReply Admin::sleep_reply(Service& service) const {
  const Residence now = service.residence();
  if (now == Residence::kWaking) {
    return error_reply({.status = 409,
                        .message = fmt::format("{} is being loaded: try again when it is awake",
                                               service.model().names.front())});
  }
  if (!sleeps(now) && !setting_.residents.put_to_sleep(service)) {
    return error_reply(
        {.status = 409,
         .message = fmt::format("{} cannot sleep now: {} of its requests wait or run; try again "
                                "when they have ended",
                                service.model().names.front(), service.outstanding())});
  }
  return residence_reply(service);
}

HttpReply Admin::intent_reply(const HttpCall& call, Service& service) const {
  if (call.method == "PUT") {
    return begun_reply(setting_.residents.want_intent(service, call.body));
  }
  return call.method == "DELETE"
             ? begun_reply(setting_.residents.take_back_intent(service))
             : HttpReply{.body = json::serialize(setting_.residents.intent_of(service))};
}

HttpReply Admin::profile_reply(const HttpCall& call, Service& service) const {
  if (call.method == "POST") {
    return begun_reply(setting_.residents.profile(service));
  }
  return call.method == "DELETE"
             ? begun_reply(setting_.residents.take_back_profile(service))
             : HttpReply{.body = json::serialize(setting_.residents.profile_of(service))};
}

// Shows the configurations among which a plan chose, and what each estimate rests on.
HttpReply Admin::plan_reply(const Service& service) const {
  const IntentPlan& plan = setting_.residents.plan_of(service);
  if (plan.estimates == nullptr) {
    return error_reply(
        {.status = 404,
         .message = fmt::format("{} is not served for an intent: start it with --intent, or send "
                                "PUT /admin/intent",
                                service.model().names.front())});
  }
  return {.body = *plan.estimates};
}

// Deploys the model that the body describes, or removes the one that the query names.
HttpReply Admin::change_reply(const HttpCall& call) const {
  if (call.method == "POST") {
    return changed_reply(setting_.residents.deploy(call.body), "deploying");
  }
  const auto named = query_value(call.target, "model");
  Service* service = named ? models_.find(*named) : nullptr;
  if (service == nullptr) {
    if (const auto becomes = named ? setting_.residents.take_back(*named) : std::nullopt) {
      return changed_reply(*named, *becomes);
    }
    return error_reply(
        named ? models_.unknown(excerpt(*named))
              : ApiError{.message = "name the model to remove: ?model=NAME", .param = "model"});
  }
  return changed_reply(setting_.residents.remove(*service), "leaving");
}

HttpReply Admin::models_reply() const {
  json::array models;
  for (const Service* service : models_.services()) {
    const ServedModel& model = service->model();
    json::object shown = setting_.residents.intent_of(*service);
    const FormStatus& form = service->fleet().form(ReplicaId{0});
    const double load_s = setting_.residents.load_s(*service);
    models.push_back({{"model", model.names.front()},
                      {"intent", shown["intent"]},
                      {"moves", shown["moves"]},
                      {"names", json::array(model.names.begin(), model.names.end())},
                      {"replicas", service->replicas()},
                      {"max_model_len", model.max_model_len},
                      {"residence", to_string(service->residence())},
                      {"wake_seconds", load_s > 0 ? json::value(load_s) : json::value()},
                      {"device_bytes", form.pages.page_bytes * form.pages.all},
                      {"own_bytes", form.pages.page_bytes * form.pages.own},
                      {"form", to_string(form.form)},
                      {"jobs", setting_.residents.jobs_of(*service)},
                      {"now", shown_load(service->fleet().sum())}});
    if (service->share != nullptr) {
      show_share(*service->share, models.back().as_object());
    }
  }
  for (json::value& model : setting_.residents.absent()) {
    models.push_back(std::move(model));
  }
  return {.body = json::serialize(json::object{{"models", std::move(models)}})};
}

void Admin::count(const HttpCall& call, int status) {
  const AdminRoute* row = find_route(call.target);
  models_.count(row == nullptr ? "none" : row->path, call.method, status);
}

}  // namespace protean

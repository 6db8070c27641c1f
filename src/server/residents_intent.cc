// How a model comes to be served for another intent while it answers.

#include <fmt/format.h>

#include <boost/json/object.hpp>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "contract/intent.h"
#include "server/call/json_body.h"
#include "server/residents.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view to_string(IntentChange::State state) {
  switch (state) {
    case IntentChange::State::kPlanning:
      return "planning";
    case IntentChange::State::kLoading:
      return "loading";
    case IntentChange::State::kDraining:
      return "draining";
    case IntentChange::State::kDone:
      return "done";
    case IntentChange::State::kFailed:
      return "failed";
  }
  return "";
}

bool has_ended(const IntentChange& change) {
  return change.state == IntentChange::State::kDone || change.state == IntentChange::State::kFailed;
}

// Reads {"intent": "min-latency"}.
Checked<std::string> read_intent(const std::string& body) {
  const Checked<json::value> parsed = parse_json_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  const json::object* asked = std::get<json::value>(parsed).if_object();
  const json::value* intent = asked == nullptr ? nullptr : asked->if_contains("intent");
  if (intent == nullptr || !intent->is_string() || asked->size() != 1) {
    return ApiError{.message = R"(send {"intent": "min-latency"} or another intent)",
                    .param = "intent"};
  }
  std::string text(intent->get_string());
  if (const auto known = parse_intent(text); !known.ok()) {
    return ApiError{.message = known.error().message, .param = "intent"};
  }
  return text;
}

}  // namespace

Checked<json::object> Residents::want_intent(Service& service, const std::string& body) {
  if (loader_ == nullptr || models_.state() != ServerState::kReady) {
    return ApiError{.status = 503, .message = "the server is loading or draining: try later"};
  }
  Checked<std::string> intent = read_intent(body);
  if (const ApiError* error = std::get_if<ApiError>(&intent)) {
    return *error;
  }
  const std::string& name = service.model().names.front();
  const auto before = changes_.find(name);
  if (before != changes_.end() && !has_ended(before->second)) {
    return ApiError{
        .status = 409,
        .message = fmt::format("the intent of {} is being changed to {}: try again when "
                               "GET /admin/intent shows it as done",
                               name, before->second.intent)};
  }
  const std::size_t place = place_of(service);
  changes_[name] = {
      .intent = std::get<std::string>(std::move(intent)), .former = place, .began_ns = clock_()};
  loader_->replace(place, changes_[name].intent);
  return intent_of(service);
}

json::object Residents::intent_of(const Service& service) const {
  const std::string& name = service.model().names.front();
  const std::string& intent = hosts_[place_of(service)]->intent;
  json::object shown{{"model", name},
                     {"intent", intent.empty() ? json::value() : json::value(intent)}};
  const auto found = changes_.find(name);
  if (found == changes_.end()) {
    return shown;
  }
  const IntentChange& change = found->second;
  const TimeNs until_ns = has_ended(change) ? change.ended_ns : clock_();
  json::object job{{"intent", change.intent},
                   {"state", to_string(change.state)},
                   {"seconds", static_cast<double>(until_ns - change.began_ns) / kNsPerS}};
  if (!change.configuration.empty()) {
    job["configuration"] = change.configuration;
  }
  if (!change.error.empty()) {
    job["error"] = change.error;
  }
  if (change.state == IntentChange::State::kDraining && hosts_[change.former] != nullptr) {
    job["requests"] = hosts_[change.former]->service.outstanding();
  }
  shown["change"] = std::move(job);
  return shown;
}

// Returns the change under way that replaces the model at this place; null if there is none, as
// when the model was removed meanwhile.
IntentChange* Residents::change_of(std::size_t former) {
  for (auto& [name, change] : changes_) {
    if (change.former == former && !has_ended(change)) {
      return &change;
    }
  }
  return nullptr;
}

void Residents::end(IntentChange& change, const Status& how) {
  change.state = how.ok() ? IntentChange::State::kDone : IntentChange::State::kFailed;
  change.error = how.ok() ? "" : how.error().message;
  change.ended_ns = clock_();
}

void Residents::planned(std::size_t model, const std::string& configuration) {
  if (IntentChange* change = change_of(model)) {
    change->configuration = configuration;
    change->state = IntentChange::State::kLoading;
  }
}

void Residents::kept(std::size_t model) {
  if (IntentChange* change = change_of(model)) {
    hosts_[model]->intent = change->intent;
    end(*change, {});
  }
}

void Residents::not_replaced(std::size_t model, const Error& error) {
  if (IntentChange* change = change_of(model)) {
    log::error("{} is not served for {}: {}", hosts_[model]->service.model().names.front(),
               change->intent, error.message);
    end(*change, error);
  }
}

void Residents::replaced(std::size_t model, std::shared_ptr<Host> by, bool loaded) {
  const std::size_t place = hosts_.size();
  hosts_.push_back(by);
  IntentChange* change = change_of(model);
  if (change == nullptr || models_.state() != ServerState::kReady) {
    loader_->remove(place);
    hosts_.back() = nullptr;
    return;
  }
  Service& former = hosts_[model]->service;
  by->service.set_state(ServerState::kReady);
  models_.replace(former, by->service);
  admit(by->service);
  if (!loaded) {
    load_after(*change, place);
  }
  former.leave();
  leaving_.push_back(model);
  change->state = IntentChange::State::kDraining;
  look();
}

// The model sleeps until the former one has given its memory back, and is loaded then.
void Residents::load_after(IntentChange& change, std::size_t place) {
  Service& service = hosts_[place]->service;
  service.on_wanted = [this, former = change.former, place] {
    if (hosts_[former] == nullptr) {
      loader_->load(place);
    }
  };
  service.fall_asleep();
  service.fell_asleep();
  change.follower = place;
}

// The former model has gone, for whose memory its follower may have waited.
void Residents::follow(std::size_t former) {
  IntentChange* change = change_of(former);
  if (change == nullptr) {
    return;
  }
  if (!change->follower) {
    end(*change, {});
    return;
  }
  change->state = IntentChange::State::kLoading;
  Service& service = hosts_[*change->follower]->service;
  if (service.residence() == Residence::kWaking) {
    loader_->load(*change->follower);
  } else {
    service.wake();
  }
}

void Residents::end_load(std::size_t follower, const Status& loaded) {
  for (auto& [name, change] : changes_) {
    if (change.follower == follower && !has_ended(change)) {
      end(change, loaded);
    }
  }
}

}  // namespace protean

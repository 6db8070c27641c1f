// How a model comes to be served for another intent while it answers.

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/intent_wish.h"
#include "server/job_progress.h"
#include "server/residents.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view to_string(IntentChange::State state) {
  switch (state) {
    case IntentChange::State::kPlanning:
      return "planning";
    case IntentChange::State::kMorphing:
      return "morphing";
    case IntentChange::State::kLoading:
      return "loading";
    case IntentChange::State::kDraining:
      return "draining";
    case IntentChange::State::kDone:
      return "done";
    case IntentChange::State::kFailed:
      return "failed";
    case IntentChange::State::kCancelled:
      return "cancelled";
  }
  return "";
}

constexpr std::chrono::seconds kSample{1};  // between samples of the loads

bool has_ended(const IntentChange& change) {
  return change.state == IntentChange::State::kDone ||
         change.state == IntentChange::State::kFailed ||
         change.state == IntentChange::State::kCancelled;
}

// Adds how far a change is in planning or loading.
void show_change_progress(const IntentChange& change, json::object& job) {
  if (change.state == IntentChange::State::kPlanning ||
      change.state == IntentChange::State::kLoading) {
    show_progress(change.progress, job);
  }
}

// Returns true if an operator chose a form, a mode or a floor, which a move would lose.
bool is_steered(const Service& service) {
  const FormStatus& start = service.model().form;
  for (int replica = 0; replica < service.replicas(); ++replica) {
    const FormStatus& now = service.fleet().form(ReplicaId{replica});
    if (now.pinned || now.mode != start.mode || now.floor != start.floor) {
      return true;
    }
  }
  return false;
}

}  // namespace

Checked<json::object> Residents::want_intent(Service& service, const std::string& body) {
  if (loader_ == nullptr || models_.state() != ServerState::kReady) {
    return ApiError{.status = 503, .message = "the server is loading or draining: try later"};
  }
  Checked<IntentWish> wish = read_intent_wish(body);
  if (const ApiError* error = std::get_if<ApiError>(&wish)) {
    return *error;
  }
  if (const std::string& why = hosts_[place_of(service)]->no_intent; !why.empty()) {
    return ApiError{.status = 409, .message = why};
  }
  const std::string& name = service.model().names.front();
  const auto before = changes_.find(name);
  if (before != changes_.end() && !has_ended(before->second)) {
    return ApiError{
        .status = 409,
        .message = fmt::format("the intent of {} is being changed to {}: try again when "
                               "GET /admin/intent shows it as done",
                               name, before->second.wish.intent)};
  }
  begin_change(service, with_load(std::get<IntentWish>(std::move(wish)), service.fleet().sum(),
                                  service.fleet().answer_lengths()));
  return intent_of(service);
}

Checked<json::object> Residents::take_back_intent(Service& service) {
  const std::size_t place = place_of(service);
  IntentChange* change = change_to_take_back(place);
  if (change == nullptr || change->must_leave) {  // nothing else would have it leave the device
    return ApiError{.status = 409,
                    .message = fmt::format("no change of the intent of {} can be taken back: its "
                                           "state in GET /admin/intent must be planning or "
                                           "loading, before another configuration serves, and "
                                           "it must not be one that the server began because a "
                                           "device failed",
                                           service.model().names.front())};
  }
  change->taken_back = true;
  loader_->take_back_replacement(place);
  return intent_of(service);
}

void Residents::begin_change(Service& service, IntentWish wish) {
  const std::size_t place = place_of(service);
  IntentChange& change = changes_[service.model().names.front()];
  change = {.wish = std::move(wish), .former = place, .began_ns = clock_()};
  loader_->replace(place, change.wish);
}

void Residents::watch_loads() {
  if (loader_ == nullptr || stopped_) {
    return;
  }
  load_timer_.expires_after(kSample);
  load_timer_.async_wait([this](const boost::system::error_code& cancelled) {
    if (!cancelled) {
      look_at_loads();
      watch_loads();
    }
  });
}

bool Residents::is_settled() const {
  const bool deploying = std::any_of(deploying_.begin(), deploying_.end(), [](const auto& one) {
    return one.second.state != DeployJob::State::kFailed;
  });
  const bool changing = std::any_of(changes_.begin(), changes_.end(),
                                    [](const auto& one) { return !has_ended(one.second); });
  return models_.state() == ServerState::kReady && leaving_.empty() && !deploying && !changing &&
         !profiles();
}

void Residents::look_at_loads() {
  look_at_failures();
  look_at_morphs();
  std::vector<ModelSample> samples;
  const bool settled = is_settled();
  for (const Service* service : models_.services()) {
    const Observation seen = service->fleet().sum();
    const IntentWish load = with_load({.intent = hosts_[place_of(*service)]->intent}, seen,
                                      service->fleet().answer_lengths());
    samples.push_back({.model = place_of(*service),
                       .running = service->outstanding() > 0 ? std::max(1, seen.running) : 0,
                       .prompt_tokens = load.prompt_tokens,
                       .output_tokens = load.output_tokens,
                       .may_move = settled && service->residence() == Residence::kAwake &&
                                   !is_steered(*service)});
  }
  auto move = loader_->choose_move(samples);
  if (!move) {
    return;
  }
  Service& service = hosts_.at(move->model)->service;
  const std::string& name = service.model().names.front();
  log::info("{} moves: {}", name, move->wish.move->why);
  begin_change(service, std::move(move->wish));
}

int Residents::moves_of(const std::string& name) const {
  const auto found = moves_.find(name);
  return found == moves_.end() ? 0 : found->second;
}

json::object Residents::intent_of(const Service& service) const {
  const std::string& name = service.model().names.front();
  const std::string& intent = hosts_[place_of(service)]->intent;
  json::object shown{{"model", name},
                     {"intent", intent.empty() ? json::value() : json::value(intent)},
                     {"moves", moves_of(name)}};
  const auto found = changes_.find(name);
  if (found == changes_.end()) {
    return shown;
  }
  const IntentChange& change = found->second;
  const TimeNs until_ns = has_ended(change) ? change.ended_ns : clock_();
  json::object job{{"intent", change.wish.intent},
                   {"state", to_string(change.state)},
                   {"began", (change.began_ns + service.unix_offset_ns()) / kNsPerS},
                   {"seconds", static_cast<double>(until_ns - change.began_ns) / kNsPerS}};
  for (const auto& [field, number] : {std::pair("batch", change.wish.batch),
                                      std::pair("prompt_tokens", change.wish.prompt_tokens),
                                      std::pair("output_tokens", change.wish.output_tokens)}) {
    if (number > 0) {
      job[field] = number;
    }
  }
  show_change_progress(change, job);
  if (change.wish.output_quantile > 0) {
    job["output_tokens_quantile"] = change.wish.output_quantile;
  }
  if (!change.plan.configuration.empty()) {
    job["configuration"] = change.plan.configuration;
  }
  if (!change.how.why.empty()) {
    job["way"] = change.how.in_place      ? "in place"
                 : change.how.hands_over  ? "handed over"
                 : change.how.placed_anew ? "placed anew"
                                          : "a second copy";
    job["way_why"] = change.how.why;
  }
  if (!change.error.empty()) {
    job["error"] = change.error;
  }
  if (const auto& move = change.wish.move) {
    job["why"] = move->why;
    job["devices"] = json::array(move->devices.begin(), move->devices.end());
    job["saves_s"] = move->saves_s;
    job["costs_s"] = move->costs_s;
  }
  if (change.state == IntentChange::State::kDraining && hosts_[change.former] != nullptr) {
    job["requests"] = hosts_[change.former]->service.outstanding();
  }
  shown["change"] = std::move(job);
  return shown;
}

// Adds the change of a model's intent, if it is under way.
void Residents::add_change(const std::string& name, json::array& jobs) const {
  const auto found = changes_.find(name);
  if (found == changes_.end() || has_ended(found->second)) {
    return;
  }
  const IntentChange& change = found->second;
  json::object job{
      {"job", "intent"}, {"intent", change.wish.intent}, {"state", to_string(change.state)}};
  show_change_progress(change, job);
  jobs.push_back(std::move(job));
}

const IntentPlan& Residents::plan_of(const Service& service) const {
  return hosts_[place_of(service)]->plan;
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

// Returns the model's change of intent if it can be taken back; null otherwise. It must not have
// begun to change what serves, and no requests may wait for it.
IntentChange* Residents::change_to_take_back(std::size_t former) {
  IntentChange* change = change_of(former);
  const bool is_early = change != nullptr && !change->wish.requests_wait &&
                        (change->state == IntentChange::State::kPlanning ||
                         (change->state == IntentChange::State::kLoading && !change->follower));
  return is_early ? change : nullptr;
}

void Residents::end(IntentChange& change, const Status& how) {
  change.state = how.ok()            ? IntentChange::State::kDone
                 : change.taken_back ? IntentChange::State::kCancelled
                                     : IntentChange::State::kFailed;
  change.error = how.ok() || change.taken_back ? "" : how.error().message;
  change.ended_ns = clock_();
  change.gives_way = change.gives_way && !how.ok();
}

void Residents::planned(std::size_t model, const IntentPlan& plan) {
  if (IntentChange* change = change_of(model)) {
    change->plan = plan;
    change->progress = {};
    change->state = IntentChange::State::kLoading;
  }
}

void Residents::changing(std::size_t model, const JobProgress& progress) {
  if (IntentChange* change = change_of(model)) {
    change->progress = progress;
  }
}

void Residents::changes(std::size_t model, const ConfigurationChange& how) {
  IntentChange* change = change_of(model);
  if (change != nullptr && change->taken_back && how.in_place) {
    loader_->forget_replacement(model);
    not_replaced(model, withdrawn());
  } else if (change != nullptr && how.planned_again) {
    change->wish.move.reset();
    change->plan = {};
    change->how = {};
    change->progress = {};
    change->state = IntentChange::State::kPlanning;
  } else if (change != nullptr) {
    change->how = how;
    change->morphs = false;
    if (!how.placed_anew) {  // which is known before it is planned
      change->state = how.in_place ? IntentChange::State::kMorphing : IntentChange::State::kLoading;
    }
    if (how.in_place) {
      morph(model, *how.in_place);
    }
  }
}

// Asks the engine for the form of quiet times. What is asked for stays if the model sleeps and
// wakes. A model that sleeps at the time is loaded in that form when it wakes.
void Residents::morph(std::size_t model, const FormWish& wish) {
  Service& service = hosts_[model]->service;
  if (sleeps(service.residence())) {
    service.rest_in(wish);
    loader_->morphed(model, {});
    return;
  }
  const auto pending = service.ask_form(ReplicaId{0}, wish);
  pending->on_ready = [this, model, wish, reply = pending.get()] {
    IntentChange* change = change_of(model);
    if (change == nullptr || change->state != IntentChange::State::kMorphing) {
      return;
    }
    change->morphs = reply->reply->status == 202;
    if (change->morphs) {
      hosts_[model]->service.rest_in(wish);
    } else {
      loader_->morphed(model,
                       make_error(ErrorCode::kUnavailable, "{}", error_message(*reply->reply)));
    }
  };
}

// Tells the loader which morphs have ended. A policy may keep its engine below the form for as long
// as the load asks for that.
void Residents::look_at_morphs() {
  for (auto& [name, change] : changes_) {
    if (!change.morphs || hosts_[change.former] == nullptr) {
      continue;
    }
    const Service& service = hosts_[change.former]->service;
    const FormStatus& now = service.fleet().form(ReplicaId{0});
    const FormWish& wish = *change.how.in_place;
    const bool awake = service.residence() == Residence::kAwake;
    if (awake && now.form != now.wanted) {
      continue;
    }
    change.morphs = false;
    const bool reached = now.form.layer_precision == wish.layers &&
                         (!wish.embeddings || now.form.embeddings == *wish.embeddings);
    loader_->morphed(change.former, reached || !awake || now.mode != MorphMode::kOff
                                        ? Status()
                                        : make_error(ErrorCode::kUnavailable,
                                                     "a step of the morph failed, see the log"));
  }
}

void Residents::kept(std::size_t model) {
  if (IntentChange* change = change_of(model)) {
    hosts_[model]->intent = change->wish.intent;
    hosts_[model]->plan = change->plan;
    if ((change->how.in_place || change->how.hands_over) && change->wish.move) {
      Service& service = hosts_[model]->service;
      service.show_moves(++moves_[service.model().names.front()]);
    }
    end(*change, {});
  }
}

// A change that is taken back at this moment is done all the same. A model that is placed anew is
// to be loaded first. Another change for the same wish follows if the model must leave a device.
// While the server drains, no change follows.
void Residents::succeeded(std::size_t model, const ServedModel& as, bool must_leave) {
  if (hosts_[model] == nullptr) {
    return;
  }
  Service& service = hosts_[model]->service;
  service.become(as);
  IntentChange* const change = change_of(model);
  if (change != nullptr && change->how.placed_anew) {
    hosts_[model]->intent = change->wish.intent;
    hosts_[model]->plan = change->plan;
    change->follower = model;
    return;
  }
  kept(model);
  if (must_leave && change != nullptr && models_.state() == ServerState::kReady) {
    IntentWish wish = change->wish;
    wish.move.reset();
    begin_change(service, std::move(wish));
    change_of(model)->must_leave = true;
  }
}

void Residents::not_replaced(std::size_t model, const Error& error) {
  if (IntentChange* change = change_of(model)) {
    log::write(change->taken_back ? log::Level::kInfo : log::Level::kError,
               fmt::format("{} is not served for {}: {}",
                           hosts_[model]->service.model().names.front(), change->wish.intent,
                           change->gives_way ? "its devices have failed, so it is planned anew"
                                             : error.message));
    end(*change, error);
  }
}

void Residents::replaced(std::size_t model, std::shared_ptr<Host> by, bool loaded) {
  const std::size_t place = hosts_.size();
  hosts_.push_back(by);
  IntentChange* change = change_of(model);
  const bool is_late = change != nullptr && change->taken_back;
  if (change == nullptr || is_late || models_.state() != ServerState::kReady) {
    loader_->remove(place);
    hosts_.back() = nullptr;
    not_replaced(model,
                 is_late ? withdrawn() : Error{ErrorCode::kUnavailable, "the server drains"});
    return;
  }
  Service& former = hosts_[model]->service;
  by->service.set_state(ServerState::kReady);
  if (by->service.share != nullptr && former.share != nullptr) {
    by->service.share->set_priority(former.share->priority());  // it may have changed meanwhile
  }
  const std::string& name = by->service.model().names.front();
  moves_[name] += change->wish.move ? 1 : 0;
  by->service.show_moves(moves_[name]);
  models_.replace(former, by->service);
  admit(by->service);
  if (!loaded) {
    load_after(*change, place);
  }
  former.leave();
  loader_->leaves(model);
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
  // What follows may have been removed, and gone before.
  if (!change->follower || hosts_[*change->follower] == nullptr) {
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

// A model is removed. Its former engines may still have requests, and what follows them may have
// some that wait for their memory, which follow() then loads.
void Residents::forget_change(const std::string& name) {
  const auto found = changes_.find(name);
  if (found == changes_.end()) {
    return;
  }
  const IntentChange& change = found->second;
  if (!change.follower || change.follower == change.former || has_ended(change)) {
    changes_.erase(found);
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

#include "server/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <exception>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/anthropic/messages_call.h"
#include "server/llama/llama_call.h"
#include "server/llama/llama_properties.h"
#include "server/openai/embedding_call.h"
#include "server/openai/openai_answer.h"
#include "server/openai/score_call.h"
#include "server/operators/form_json.h"
#include "server/operators/groups_json.h"
#include "server/responses/responses_call.h"

namespace protean {
namespace {

namespace json = boost::json;

// Logs the replicas that went out of service and the changes of groups that did not come about
// since `before`, which may be null.
void log_failures(const GroupsStatus* before, const GroupsStatus& now) {
  for (std::size_t i = before == nullptr ? 0 : before->failed.size(); i < now.failed.size(); ++i) {
    const ReplicaFailure& failure = now.failed[i];
    log::error("replica {} is out of service: it {}; its requests go on on other devices, or end",
               failure.replica.value, failure.why);
  }
  const std::int64_t known = before == nullptr ? 0 : before->failures_total;
  std::int64_t fresh = now.failures_total - (now.failures_total < known ? 0 : known);
  std::vector<std::string> lines;
  for (auto record = now.history.rbegin(); record != now.history.rend() && fresh > 0; ++record) {
    if (!record->failure.empty()) {
      lines.push_back(fmt::format(
          "groups of replicas {} are {} after a change that did not succeed: {}",
          names_of(record->replicas), record->together ? "one group" : "apart", record->failure));
      --fresh;
    }
  }
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    log::warning("{}", *line);
  }
}

std::shared_ptr<const ServedModel> with_text_limit(ServedModel model) {
  if (model.tokenizer != nullptr) {
    model.max_text_bytes = most_text_bytes(*model.tokenizer, model.max_model_len);
  }
  return std::make_shared<const ServedModel>(std::move(model));
}

}  // namespace

ApiError error_of_current_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::exception& thrown) {
    log::error("a request met a bug: {}", thrown.what());
    return {
        .status = 500,
        .message = "the request failed because of a bug in the server, which its log describes"};
  }
}

Service::Service(ServiceLimits limits, ServedModel model, MetricsLabels labels,
                 Environment environment, BoundedQueue<Event>& inbox)
    : limits_(limits),
      model_(with_text_limit(std::move(model))),
      version_(labels.version),
      environment_(std::move(environment)),
      start_(environment_),
      engines_(inbox, environment_.clock),
      metrics_(labels, model_->replicas),
      feed_(start_.unix_offset_ns, model_->replicas),
      fleet_(model_->replicas, model_->form) {
  check(!model_->names.empty(), "a served model has a name");
  check(model_->tokenizer != nullptr && model_->chat_template != nullptr,
        "a served model has a tokenizer and a chat template");
  for (int replica = 0; replica < model_->replicas; ++replica) {
    metrics_.form(ReplicaId{replica}, model_->form);
    feed_.form(ReplicaId{replica}, model_->form, now_ns());
  }
  engines_.on_change = [this](Residence residence) { show_residence(residence); };
  show_state(now_ns());
}

void Service::become(ServedModel model) {
  model_ = with_text_limit(std::move(model));
  engines_.rest.reset();
  engines_.standing.clear();
  const bool loaded = residence() == Residence::kAwake;
  forget_failure();
  fleet_.become(model_->form, loaded);
  if (!loaded) {  // the engines report no form before they are
    metrics_.form(ReplicaId{0}, model_->form);
    feed_.form(ReplicaId{0}, model_->form, now_ns());
  }
  show_state(now_ns());
}

Service::Answer Service::handle(const HttpCall& call) {
  const RouteMatch match = match_route(call.target);
  switch (match.route) {
    case Route::kChat:
      return generate(call, read_chat_call);
    case Route::kCompletions:
      return generate(call, read_completion_call);
    case Route::kResponses:
      return generate(call, read_responses_call);
    case Route::kMessages:
      return generate(call, read_messages_call);
    case Route::kCountTokens:
      return convert(call, read_messages_count);
    case Route::kEmbeddings:
      return generate(call, read_embedding_call);
    case Route::kScore:
      return generate(call, read_score_call);
    case Route::kRerank:
      return generate(call, read_rerank_call);
    case Route::kLlamaCompletion:
      return generate(call, read_llama_completion);
    case Route::kLlamaInfill:
      return generate(call, read_llama_infill);
    case Route::kTokenize:
      return convert(call, read_tokenize_call);
    case Route::kDetokenize:
      return convert(call, read_detokenize_call);
    case Route::kOllama:
      return answer_ollama(match.pattern, call);
    default:
      check(false, "calls that concern all models are not given to one");
      return HttpReply{};
  }
}

Checked<std::string> Service::served_name(const std::string& asked, const ServedModel& model) {
  const std::vector<std::string>& names = model.names;
  if (asked.empty()) {
    return names.front();
  }
  if (std::find(names.begin(), names.end(), asked) == names.end()) {
    return unknown_model(excerpt(asked), names);
  }
  return asked;
}

ApiError unknown_model(std::string_view shown, const std::vector<std::string>& names) {
  return {.status = 404,
          .message = fmt::format("the model \"{}\" does not exist here, this server has \"{}\"",
                                 shown, fmt::join(names, "\", \"")),
          .param = "model",
          .code = "model_not_found"};
}

std::int64_t Service::outstanding() const {
  std::int64_t count = std::ssize(live_);
  for (const auto& [generation, choices] : pending_) {
    count += choices;
  }
  return count;
}

std::optional<ApiError> Service::refuse_count(std::int64_t choices) const {
  if (choices > limits_.max_outstanding) {
    return ApiError{
        .message = fmt::format("this asks for {} choices, one for each text or prompt and each of "
                               "n, but this server takes at most {} at once",
                               choices, limits_.max_outstanding)};
  }
  if (outstanding() + choices > limits_.max_outstanding) {
    return queue_full();
  }
  return std::nullopt;
}

ApiError Service::queue_full() const {
  return {.status = 429,
          .message = fmt::format("{} requests are running or waiting, the most this server takes: "
                                 "try again later",
                                 outstanding()),
          .retry_after_s = static_cast<int>(1 + fleet_.sum().expected_wait_ns / kNsPerS)};
}

void Service::deliver(const OutputBatch& batch) {
  fleet_.engine(batch.replica, batch.observation);
  metrics_.engine(batch.replica, fleet_.seen(batch.replica));
  feed_.engine(batch.replica, batch.observation, batch.at_ns);
  if (batch.form != nullptr) {
    fleet_.form(batch.replica, batch.form);
    metrics_.form(batch.replica, *batch.form);
    feed_.form(batch.replica, *batch.form, batch.at_ns);
  }
  if (batch.groups != nullptr) {
    log_failures(fleet_.groups(), *batch.groups);
    // A replica that is alone tells of groups only if its devices fail, and then once more when
    // others have taken their place.
    const bool mended = failure() != nullptr && batch.groups->failed.empty();
    fleet_.groups(mended ? nullptr : batch.groups);
    metrics_.groups(*batch.groups);
    feed_.serving(fleet_.serving());
    for (int number = 0; number < replicas(); ++number) {
      const ReplicaId replica{number};
      Observation seen = fleet_.seen(replica);
      seen.step_tokens = 0;  // no step was computed
      metrics_.engine(replica, seen);
      if (fleet_.serving()[static_cast<std::size_t>(number)] != replica) {
        metrics_.has_no_form(replica);
      }
    }
  }
  if (batch.migrations != nullptr) {
    fleet_.migrations(*batch.migrations);
  }
  if (batch.replicas_wanted) {
    fleet_.replicas_wanted(*batch.replicas_wanted);
    metrics_.replicas_wanted(*batch.replicas_wanted);
  }
  if (batch.form != nullptr || batch.groups != nullptr) {
    show_state(batch.at_ns);
  }
  for (const Output& output : batch.outputs) {
    std::visit([&](const auto& what) { on(what, batch); }, output);
  }
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  for (const std::shared_ptr<Generation>& generation : std::exchange(touched_, {})) {
    generation->flush();
    cancel_unwanted(*generation);
    notify(*generation);
  }
}

Service::Live* Service::touch(RequestId request) {
  const auto found = live_.find(request);
  if (found == live_.end()) {
    return nullptr;
  }
  touched_.push_back(found->second.generation);
  return &found->second;
}

void Service::on(const Accepted& accepted, const OutputBatch&) {
  if (Live* live = touch(accepted.request)) {
    live->generation->accepted();
  }
}

void Service::on(const Refused& refused, const OutputBatch&) {
  if (Live* live = touch(refused.request)) {
    live->generation->refused(refused.error);
    live_.erase(refused.request);
  }
}

void Service::on(const PromptScored& scored, const OutputBatch&) {
  if (Live* live = touch(scored.request)) {
    live->generation->scored(live->choice, scored);
  }
}

void Service::on(const NewToken& token, const OutputBatch& batch) {
  Live* live = touch(token.request);
  if (live == nullptr) {
    return;
  }
  if (live->first_token_ns == 0) {
    live->first_token_ns = batch.at_ns;
    metrics_.first_token(batch.replica, batch.at_ns - live->received_ns);
    feed_.first_token(batch.at_ns - live->received_ns, batch.at_ns);
  } else {
    metrics_.next_token(batch.replica, batch.at_ns - live->last_token_ns);
    feed_.next_token(batch.at_ns - live->last_token_ns, batch.at_ns);
  }
  live->last_token_ns = batch.at_ns;
  ++live->output_tokens;
  live->generation->token(live->choice, token);
}

void Service::on(const Finished& finished, const OutputBatch& batch) {
  if (Live* live = touch(finished.request)) {
    live->generation->finished(live->choice, finished);
    record(finished, batch.replica, *live);
    live_.erase(finished.request);
    engines_.use();
  }
}

void Service::record(const Finished& finished, ReplicaId replica, const Live& live) {
  const AnswerIdentity& identity = live.generation->identity();
  const std::string_view reason = live.generation->finish_reason(live.choice);
  const RequestUsage& usage = finished.usage;
  const EndedRequest ended{.reason = reason,
                           .usage = usage,
                           .times = finished.times,
                           .received_ns = live.received_ns,
                           .max_tokens = live.max_tokens};
  metrics_.finished(replica, ended);
  feed_.finished(ended);
  if ((reason == "stop" || reason == "length") && usage.output_tokens > 0) {
    fleet_.answered(usage.prompt_tokens, usage.output_tokens);
  }
  AnswerRecord& whole = live.generation->record;
  add_choice(whole, reason, usage, finished.times);
  if (whole.choices == static_cast<int>(live.generation->requests().size())) {
    const auto& failure = live.generation->failure();
    whole.id = identity.id;
    whole.model = identity.model;
    whole.received_ns = live.received_ns;
    whole.status = failure ? failure->status : 200;
    on_answered(whole);
  }
}

void Service::set_state(ServerState state) {
  state_ = state;
  show_state(now_ns());
  if (state == ServerState::kDraining) {  // a stream would keep the server from ending
    feed_.end();
  }
}

// What is the same for all replicas.
json::object Service::common_state() const {
  constexpr std::array kStates{"loading", "ready", "draining"};
  json::object shown{{"state", kStates.at(static_cast<std::size_t>(state_))},
                     {"model", model_->names.front()},
                     {"version", version_},
                     {"residence", to_string(residence())}};
  if (model_->ttft_target_ns > 0) {
    shown.emplace("targets", json::object{{"ttft_s", static_cast<double>(model_->ttft_target_ns) /
                                                         static_cast<double>(kNsPerS)}});
  }
  return shown;
}

json::object Service::state_json(ReplicaId replica) const {
  json::object shown = common_state();
  for (const json::key_value_pair& field : shown_status(fleet_.form(replica))) {
    shown.emplace(field.key(), field.value());
  }
  if (model_->pages_by_device) {
    shown.emplace("devices", shown_devices(model_->pages_by_device(fleet_.form(replica).form)));
  }
  return shown;
}

json::object Service::properties_json() const {
  json::object shown = llama_properties(*model_, limits_.max_outstanding, version_);
  shown["is_sleeping"] = residence() == Residence::kAsleep;
  return shown;
}

json::array Service::slots_json() const {
  std::vector<LlamaSlot> slots;
  for (const auto& [id, live] : live_) {
    slots.push_back({id.value, live.max_tokens, live.output_tokens});
  }
  std::sort(slots.begin(), slots.end(),
            [](const LlamaSlot& a, const LlamaSlot& b) { return a.request < b.request; });
  if (outstanding() < limits_.max_outstanding) {
    slots.push_back({});
  }
  json::array shown;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    shown.push_back(llama_slot(slots[i], static_cast<int>(i), *model_));
  }
  return shown;
}

// Tells operators who watch the state of the whole fleet.
void Service::show_state(TimeNs at_ns) {
  json::object shown = common_state();
  shown.emplace("replicas", shown_replicas(fleet_));
  if (model_->pages_by_device) {
    shown.emplace("devices", shown_devices(fleet_, model_->pages_by_device));
  }
  if (const GroupsStatus* groups = fleet_.groups()) {
    for (auto& [name, value] : shown_grouping(*groups, start_.unix_offset_ns)) {
      shown[name] = std::move(value);
    }
  }
  feed_.state(std::move(shown), at_ns);
}

std::string Service::recording(double minutes) const {
  const TimeNs span_ns = std::llround(minutes * 60 * static_cast<double>(kNsPerS));
  return feed_.recording(now_ns() - span_ns, now_ns());
}

void Service::cancel_all(const ApiError& why) {
  std::vector<std::shared_ptr<Generation>> all;
  for (const auto& [id, live] : live_) {
    all.push_back(live.generation);
  }
  for (const auto& [generation, choices] : pending_) {
    all.push_back(generation);
  }
  for (const auto& generation : all) {
    generation->fail(why);
    cancel_unwanted(*generation);
    notify(*generation);
  }
}

void Service::cancel_unwanted(const Generation& generation) {
  for (const RequestId request : generation.requests()) {
    const auto found = live_.find(request);
    if (found != live_.end() && !found->second.cancelled &&
        !generation.wants_more(found->second.choice)) {
      found->second.cancelled = true;
      engines_.tell({environment_.clock(), Cancel{request}});
    }
  }
  if (residence() != Residence::kAwake) {
    show_waiting();
  }
}

std::string Service::metrics_text(const std::vector<Service*>& services) {
  std::vector<const Metrics*> all;
  for (Service* const service : services) {
    if (service->share != nullptr) {
      service->metrics_.time_share(*service->share);
    }
    all.push_back(&service->metrics_);
  }
  return exposition(all);
}

}  // namespace protean

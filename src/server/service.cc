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
#include "server/openai/embedding_call.h"
#include "server/openai/openai_answer.h"
#include "server/operators/form_json.h"
#include "server/responses/responses_call.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr ReplicaId kWatched{0};  // the replica whose form the dashboard shows

ServedModel with_text_limit(ServedModel model) {
  if (model.tokenizer != nullptr) {
    model.max_text_bytes = most_text_bytes(*model.tokenizer, model.max_model_len);
  }
  return model;
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
      created_s_(environment_.unix_time_s()),
      engines_(inbox, environment_.clock),
      metrics_(labels, model_.replicas),
      feed_(environment_.unix_time_s() * kNsPerS - environment_.clock()),
      seen_(static_cast<std::size_t>(model_.replicas), {.kv_blocks = model_.form.form.kv.blocks}),
      forms_(seen_.size(), std::make_shared<const FormStatus>(model_.form)) {
  check(!model_.names.empty(), "a served model has a name");
  check(model_.tokenizer != nullptr && model_.chat_template != nullptr,
        "a served model has a tokenizer and a chat template");
  for (int replica = 0; replica < model_.replicas; ++replica) {
    metrics_.form(ReplicaId{replica}, model_.form);
  }
  feed_.state(state_json(kWatched), form(kWatched), now_ns());
  engines_.on_change = [this](Residence residence) { show_residence(residence); };
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

Checked<std::string> Service::served_name(const std::string& asked) const {
  if (asked.empty()) {
    return model_.names.front();
  }
  if (std::find(model_.names.begin(), model_.names.end(), asked) == model_.names.end()) {
    return unknown_model(excerpt(asked), model_.names);
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
        .message = fmt::format("this asks for {} choices, one for each prompt and each of "
                               "n, but this server takes at most {} at once",
                               choices, limits_.max_outstanding),
        .param = "n"};
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
          .retry_after_s = static_cast<int>(1 + sum_of(seen_).expected_wait_ns / kNsPerS)};
}

void Service::deliver(const OutputBatch& batch) {
  metrics_.engine(batch.replica, batch.observation);
  seen_[index(batch.replica)] = batch.observation;
  feed_.engine(sum_of(seen_), batch.at_ns);
  seen_[index(batch.replica)].step_tokens = 0;  // told once
  if (batch.form != nullptr) {
    forms_[index(batch.replica)] = batch.form;
    metrics_.form(batch.replica, *batch.form);
    if (batch.replica == kWatched) {
      feed_.state(state_json(kWatched), *batch.form, batch.at_ns);
    }
  }
  if (batch.groups != nullptr) {
    const std::size_t told = groups_ == nullptr ? 0 : groups_->failed.size();
    for (std::size_t i = told; i < batch.groups->failed.size(); ++i) {
      const ReplicaFailure& failure = batch.groups->failed[i];
      log::error("replica {} is out of service: it {}; its requests go on in other replicas",
                 failure.replica.value, failure.why);
    }
    groups_ = batch.groups;
    metrics_.groups(*groups_);
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
  feed_.state(state_json(kWatched), form(kWatched), now_ns());
  if (state == ServerState::kDraining) {  // a stream would keep the server from ending
    feed_.end();
  }
}

json::object Service::state_json(ReplicaId replica) const {
  constexpr std::array kStates{"loading", "ready", "draining"};
  json::object shown{{"state", kStates.at(static_cast<std::size_t>(state_))},
                     {"model", model_.names.front()},
                     {"version", version_},
                     {"residence", to_string(residence())}};
  for (const json::key_value_pair& field : shown_status(form(replica))) {
    shown.emplace(field.key(), field.value());
  }
  if (model_.pages_by_device) {
    shown.emplace("devices", shown_devices(model_.pages_by_device(form(replica).form)));
  }
  if (model_.ttft_target_ns > 0) {
    shown.emplace("targets", json::object{{"ttft_s", static_cast<double>(model_.ttft_target_ns) /
                                                         static_cast<double>(kNsPerS)}});
  }
  return shown;
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
}

std::string Service::metrics_text(const std::vector<Service*>& services) {
  std::vector<const Metrics*> all;
  for (const Service* service : services) {
    all.push_back(&service->metrics_);
  }
  return exposition(all);
}

}  // namespace protean

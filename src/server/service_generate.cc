// The part of the service that reads calls and submits them to the engine.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <memory>
#include <utility>

#include "base/check.h"
#include "server/call/json_body.h"
#include "server/call/sampling_fields.h"
#include "server/ollama/ollama_call.h"
#include "server/ollama/ollama_models.h"
#include "server/service.h"

namespace protean {
namespace {

namespace json = boost::json;

// Reads a header that holds milliseconds, if it is given.
std::optional<ApiError> read_ms(const HttpCall& call, const Field& field,
                                std::optional<std::int64_t>& ms) {
  const auto of_name = [&](const auto& header) { return header.first == field.name; };
  if (std::count_if(call.headers.begin(), call.headers.end(), of_name) > 1) {
    return ApiError{.message = fmt::format("the header {} is given more than once", field.name),
                    .param = std::string(field.name)};
  }
  const std::string_view text = call.header(field.name);
  if (text.empty()) {
    return std::nullopt;
  }
  std::int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc{} || end != text.data() + text.size() || value < field.least ||
      value > field.most) {
    return ApiError{.message = fmt::format("the header {} must be milliseconds from {} to {}, not "
                                           "\"{}\"",
                                           field.name, field.least, field.most, printable(text)),
                    .param = std::string(field.name)};
  }
  ms = value;
  return std::nullopt;
}

std::optional<ApiError> read_urgency_headers(const HttpCall& call, UrgencyFields& urgency) {
  if (auto refusal = read_ms(call, kUrgencyHeaders[0], urgency.ttft_ms)) {
    return refusal;
  }
  return read_ms(call, kUrgencyHeaders[1], urgency.timeout_ms);
}

Deadlines deadlines_of(const UrgencyFields& urgency, TimeNs received_ns) {
  Deadlines deadlines;
  if (urgency.ttft_ms) {
    deadlines.first_token_ns = received_ns + *urgency.ttft_ms * kNsPerMs;
  }
  if (urgency.timeout_ms) {
    deadlines.finish_ns = received_ns + *urgency.timeout_ms * kNsPerMs;
  }
  return deadlines;
}

// Returns what `make` returns, or an error for what it throws.
template <class Make>
auto catching(Make make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::exception&) {
    return error_of_current_exception();
  }
}

// Parses a body as JSON, then with `parse`. May be called from any thread.
template <class Call>
Checked<Call> read_body(const std::string& text, Checked<Call> (*parse)(json::value body)) {
  return catching([&]() -> Checked<Call> {
    Checked<json::value> body = parse_json_body(text);
    if (ApiError* error = std::get_if<ApiError>(&body)) {
      return std::move(*error);
    }
    return parse(std::get<json::value>(std::move(body)));
  });
}

HttpReply refusal_of(const HttpCall& call, const ApiError& error) {
  return error_reply(error, match_route(call.target).errors, call.request_id);
}

HttpHandler::Answer answer_of(Checked<std::shared_ptr<Generation>> generation,
                              const HttpCall& call) {
  if (const ApiError* error = std::get_if<ApiError>(&generation)) {
    return refusal_of(call, *error);
  }
  return std::get<std::shared_ptr<Generation>>(std::move(generation));
}

void settle(PendingReply& pending, HttpHandler::Answer answer) {
  if (HttpReply* reply = std::get_if<HttpReply>(&answer)) {
    pending.reply = std::move(*reply);
  } else {
    pending.answer = std::get<std::shared_ptr<GrowingAnswer>>(std::move(answer));
  }
  if (pending.on_ready) {
    pending.on_ready();
  }
}

}  // namespace

// True if the body is so long that reading it would delay the streams of other clients.
bool Service::is_long(const HttpCall& call) const {
  return environment_.in_background && std::ssize(call.body) > kLongTextBytes;
}

Service::Answer Service::answer_later(const HttpCall& call,
                                      std::function<Finish(const HttpCall& call)> slow) {
  auto pending = std::make_shared<PendingReply>();
  auto copy = std::make_shared<HttpCall>(call);
  const bool taken =
      environment_.in_background([copy, slow = std::move(slow), waiting = std::weak_ptr(pending),
                                  keep = owner.lock()]() mutable -> BackgroundWork::Done {
        if (waiting.expired()) {
          return [keep = std::move(keep)] {};
        }
        const Finish finish = slow(*copy);
        copy->body = {};
        return [copy, finish, waiting, keep = std::move(keep)] {
          if (const auto waits = waiting.lock()) {  // the client has not left
            settle(*waits, finish(*copy));
          }
        };
      });
  if (!taken) {
    return refusal_of(call, queue_full());
  }
  return pending;
}

Service::Answer Service::answer_in_background(const HttpCall& call,
                                              std::function<HttpReply()> slow) {
  if (!environment_.in_background) {
    return slow();
  }
  return answer_later(call, [slow = std::move(slow)](const HttpCall&) -> Finish {
    const auto reply = std::make_shared<HttpReply>(slow());
    return [reply](const HttpCall&) -> Answer { return std::move(*reply); };
  });
}

Service::Answer Service::generate(const HttpCall& call, ParseDialect parse) {
  const TimeNs received_ns = environment_.clock();
  if (!is_long(call)) {
    return answer_of(begin(call, read_body(call.body, parse), received_ns), call);
  }
  return answer_later(call, [this, parse, received_ns](const HttpCall& slow_call) -> Finish {
    const auto asked = std::make_shared<Checked<DialectCall>>(read_body(slow_call.body, parse));
    return [this, asked, received_ns](const HttpCall& same_call) {
      return answer_of(catching([&] { return begin(same_call, std::move(*asked), received_ns); }),
                       same_call);
    };
  });
}

Checked<std::shared_ptr<Generation>> Service::begin(const HttpCall& call,
                                                    Checked<DialectCall> asked,
                                                    TimeNs received_ns) {
  if (ApiError* error = std::get_if<ApiError>(&asked)) {
    return std::move(*error);
  }
  DialectCall& dialect = std::get<DialectCall>(asked);
  if (auto refusal = read_urgency_headers(call, dialect.call.urgency)) {
    return *std::move(refusal);
  }
  const Checked<std::string> name = served_name(dialect.call.model, *model_);
  if (const ApiError* error = std::get_if<ApiError>(&name)) {
    return *error;
  }
  if (auto refusal = refuse_count(dialect.call.choices())) {  // before tokenising
    return *refusal;
  }
  if (dialect.call.keep_loaded_ns) {
    keep_loaded(*dialect.call.keep_loaded_ns);
  }
  AnswerIdentity identity{.id = std::string(dialect.id_prefix) + call.request_id,
                          .model = std::get<std::string>(name),
                          .fingerprint = "protean-" + version_,
                          .created_s = environment_.unix_time_s()};
  auto writer = dialect.make_writer(identity, *model_->tokenizer);
  auto generation = std::make_shared<Generation>(std::move(identity), dialect.call, *model_,
                                                 std::move(writer), environment_.random());
  generation->record.origin = {.client = call.client,
                               .path = std::string(match_route(call.target).pattern),
                               .traceparent = std::string(call.header("traceparent"))};
  generation->on_abandoned = [this, abandoned = generation.get()] { cancel_unwanted(*abandoned); };
  const Deadlines deadlines = deadlines_of(dialect.call.urgency, received_ns);
  return start(std::move(generation), std::move(dialect.call), {received_ns, deadlines});
}

Checked<std::shared_ptr<Generation>> Service::start(std::shared_ptr<Generation> generation,
                                                    GenerationCall call, Timing timing) {
  const std::uint64_t chance = environment_.random();
  if (!environment_.in_background || !takes_long(call, *model_)) {
    if (auto error = submit(generation, prepare(call, *model_, chance), timing)) {
      return *std::move(error);
    }
    return generation;
  }
  pending_[generation] = call.choices();
  const auto shared = std::make_shared<const GenerationCall>(std::move(call));
  const bool taken = environment_.in_background(
      [this, shared, model = model_, chance, generation, timing, keep = owner.lock()] {
        auto made = std::make_shared<Checked<std::vector<PreparedChoice>>>(
            catching([&] { return prepare(*shared, *model, chance); }));
        return [this, made, generation, timing, keep] {
          pending_.erase(generation);
          if (!generation->done()) {  // the client has not left
            submit(generation, std::move(*made), timing);
            notify(*generation);
          }
        };
      });
  if (!taken) {
    pending_.erase(generation);
    return queue_full();
  }
  return generation;
}

// May be called from any thread.
HttpReply Service::converted(const HttpCall& call, ParseText parse, const ServedModel& model) {
  const Checked<TextCall> asked = read_body(call.body, parse);
  if (const ApiError* error = std::get_if<ApiError>(&asked)) {
    return refusal_of(call, *error);
  }
  const TextCall& text = std::get<TextCall>(asked);
  const Checked<std::string> name = served_name(text.model, model);
  if (const ApiError* error = std::get_if<ApiError>(&name)) {
    return refusal_of(call, *error);
  }
  Checked<std::string> body = catching([&] { return text.run(model); });
  if (const ApiError* error = std::get_if<ApiError>(&body)) {
    return refusal_of(call, *error);
  }
  return {.body = std::get<std::string>(std::move(body))};
}

Service::Answer Service::convert(const HttpCall& call, ParseText parse) {
  if (!is_long(call)) {
    return converted(call, parse, *model_);
  }
  return answer_later(call, [parse, model = model_](const HttpCall& slow_call) -> Finish {
    const auto reply = std::make_shared<HttpReply>(converted(slow_call, parse, *model));
    return [reply](const HttpCall&) -> Answer { return std::move(*reply); };
  });
}

// Answers a call that only loads or unloads the model.
HttpReply Service::load_or_unload(const Checked<OllamaLoad>& asked, const HttpCall& call) {
  if (const ApiError* error = std::get_if<ApiError>(&asked)) {
    return refusal_of(call, *error);
  }
  const OllamaLoad& load = std::get<OllamaLoad>(asked);
  const Checked<std::string> name = served_name(load.model, *model_);
  if (const ApiError* error = std::get_if<ApiError>(&name)) {
    return refusal_of(call, *error);
  }
  if (load.keep_loaded_ns && (load.keep_loaded_ns != 0 || !sleeps(residence()))) {
    keep_loaded(*load.keep_loaded_ns);
  }
  if (load.keep_loaded_ns != 0) {
    wake();
  }
  return {.body = load.answer};
}

Service::Answer Service::answer_ollama(std::string_view path, const HttpCall& call) {
  const bool chat = path == "/api/chat";
  if (chat || path == "/api/generate") {
    if (const auto loaded = read_ollama_load(call.body, unix_time_s())) {
      return load_or_unload(*loaded, call);
    }
    return generate(call, chat ? read_ollama_chat : read_ollama_generate);
  }
  if (path == "/api/embed" || path == "/api/embeddings") {
    return generate(call, path == "/api/embed" ? read_ollama_embed : read_ollama_embeddings);
  }
  if (path == "/api/show" || path == "/api/pull") {
    return convert(call, path == "/api/show" ? read_ollama_show : read_ollama_pull);
  }
  check(path == "/api/version", "each path of the API is answered");
  return HttpReply{.body = fmt::format(R"({{"version":"{}"}})", kOllamaApiVersion)};
}

void Service::notify(const Generation& generation) {
  if (generation.on_change) {
    generation.on_change();
  }
}

std::optional<ApiError> Service::submit(const std::shared_ptr<Generation>& generation,
                                        Checked<std::vector<PreparedChoice>> prepared,
                                        const Timing& timing) {
  if (ApiError* error = std::get_if<ApiError>(&prepared)) {
    generation->fail(*error);
    return std::move(*error);
  }
  auto& choices = std::get<std::vector<PreparedChoice>>(prepared);
  for (PreparedChoice& choice : choices) {
    choice.request.id = RequestId{++last_id_};
    choice.request.call = choices.front().request.id;
    choice.request.deadlines = timing.deadlines;
  }
  generation->begin(choices);
  const std::int64_t count = std::ssize(choices);
  for (std::int64_t i = 0; i < count; ++i) {
    Request& request = choices[static_cast<std::size_t>(i)].request;
    const RequestId id = request.id;
    const int max_tokens = request.max_tokens;
    if (!engines_.try_tell({environment_.clock(), Arrival{std::move(request)}})) {
      generation->fail(queue_full());
      cancel_unwanted(*generation);
      return generation->failure();
    }
    live_[id] = {.generation = generation,
                 .choice = static_cast<int>(i),
                 .max_tokens = max_tokens,
                 .received_ns = timing.received_ns};
  }
  if (residence() != Residence::kAwake) {
    show_waiting();
  }
  return std::nullopt;
}

}  // namespace protean

#include "server/ollama/ollama_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/call/answer_format.h"
#include "server/call/sampling_fields.h"
#include "server/call/tool_fields.h"
#include "server/ollama/keep_alive.h"
#include "server/ollama/ollama_answer.h"
#include "server/openai/chat_input.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view kIdPrefix = "ollama-";
constexpr std::size_t kLongestLoadBody = 4096;

constexpr std::array kOllamaOptionsTable =
    joined(kSamplingTable, kStopTable,
           std::array{number_field("repeat_penalty", {.low = 0, .high = 100, .low_included = false},
                                   "Ollama's name of repetition_penalty."),
                      integer_field("num_predict", -2, kNoLimit,
                                    "The most tokens of the answer; -1 and -2: as many as fit."),
                      any_field("mirostat", R"({"const":0})", "Is not supported: leave it out."),
                      any_field("tfs_z", R"({"const":1})", "Is not supported: leave it out."),
                      any_field("typical_p", R"({"const":1})", "Is not supported: leave it out.")});
constexpr Field kOllamaModelField =
    string_field("model", "The model that answers; the first one of the server by default.");
constexpr Field kKeepAliveField =
    any_field("keep_alive", R"({"type":["string","number"]})",
              "How long the model stays in memory after its last request: seconds, or a time such "
              "as \"5m\"; 0: it sleeps once it is idle; negative: it never does.");
constexpr std::array kOllamaSharedTable{
    kOllamaModelField,
    kKeepAliveField,
    boolean_field("stream", "Sends the answer as lines of JSON; true by default."),
    object_field("options", "How tokens are drawn, and when the answer ends.", kOllamaOptionsTable),
    any_field("format", R"({"anyOf":[{"enum":["","json"]},{"type":"object"}]})",
              "The answer is JSON, or JSON of this schema."),
};
constexpr std::array kOllamaChatTable =
    joined(kOllamaSharedTable, kToolsTable,
           std::array{array_field("messages",
                                  "The conversation so far; without it, the model is loaded.")});
constexpr std::array kOllamaGenerateTable = joined(
    kOllamaSharedTable,
    std::array{string_field("prompt", "What the user says; without it, the model is loaded."),
               string_field("suffix", "The answer goes between the prompt and this text."),
               string_field("system", "A system message before it."),
               boolean_field("raw", "Continues the prompt as it is, without the chat template.")});
constexpr std::string_view kTextsSchema =
    R"({"type":["string","array"],"minLength":1,"minItems":1,"items":{"type":"string",)"
    R"("minLength":1}})";
constexpr std::array kOllamaEmbeddingTable{
    kOllamaModelField,
    kKeepAliveField,
    boolean_field("truncate", "Cuts texts that are too long; true by default."),
    integer_field("dimensions", 1, kNoLimit, "Must be the size of the model's vectors."),
};
constexpr std::array kOllamaEmbedTable = joined(
    kOllamaEmbeddingTable,
    std::array{required(any_field("input", kTextsSchema, "A text, or a list: a vector each."))});
constexpr std::array kOllamaEmbeddingsTable = joined(
    kOllamaEmbeddingTable, std::array{required(any_field("prompt", kTextsSchema, "A text."))});

struct OllamaRefusal {
  std::string_view field;
  std::string_view why;
};
constexpr std::array kOllamaRefusals{
    OllamaRefusal{"images", "this model reads text only"},
    OllamaRefusal{"template", "the chat template is the model's own"},
    OllamaRefusal{"context", "send the conversation to /api/chat as messages"},
    OllamaRefusal{"think", "thoughts are not told apart from answers"},
    OllamaRefusal{"logprobs", "use /v1/chat/completions"},
};

// Clients also send these fields with values that mean nothing: "", false and empty lists.
void refuse_ollama_fields(FieldReader& fields) {
  for (const auto& [field, why] : kOllamaRefusals) {
    const json::value* value = fields.refused(field);
    const bool neutral = value == nullptr || *value == "" || *value == false ||
                         (value->is_array() && value->get_array().empty());
    if (!neutral) {
      fields.fail(field, fmt::format("{} is not supported: {}", field, why));
    }
  }
}

// Options that shape the draw in ways that the sampler does not have, with the value that turns
// each of them off.
constexpr std::array<std::pair<std::string_view, double>, 3> kNeutral{
    {{"mirostat", 0}, {"tfs_z", 1}, {"typical_p", 1}}};

void refuse_options(FieldReader& options) {
  for (const auto& [name, neutral] : kNeutral) {
    const json::value* value = options.find(name);
    const bool off =
        value == nullptr || (value->is_number() && value->to_number<double>() == neutral);
    if (!off) {
      options.fail(name, fmt::format("options.{} is not supported: leave it out", name));
    }
  }
}

// Reads the sampling options, stop strings and the length of the answer.
void read_options(FieldReader& fields, GenerationCall& call) {
  const json::object* object = fields.object("options");
  if (object == nullptr) {
    return;
  }
  FieldReader options(*object, kOllamaOptionsTable, "options.");
  call.sampling = read_sampling(options);
  if (const auto penalty = options.number("repeat_penalty")) {
    call.sampling.repetition_penalty = penalty;
  }
  call.stop = read_stop(options);
  // -1 and -2 mean as many tokens as the context holds.
  if (const auto most = options.integer("num_predict")) {
    if (*most == 0) {
      options.fail("num_predict", "options.num_predict must be -1, -2 or at least 1");
    }
    call.max_tokens = *most < 0 ? std::nullopt : most;
  }
  refuse_options(options);
  fields.adopt(options);
}

constexpr std::string_view kWantedKeepAlive =
    "a number of seconds, or a time with units such as \"5m\" or \"1h30m\"";

void read_keep_alive_field(FieldReader& fields, GenerationCall& call) {
  const json::value* value = fields.find("keep_alive");
  if (value == nullptr) {
    return;
  }
  call.keep_loaded_ns = read_keep_alive(*value);
  if (!call.keep_loaded_ns) {
    fields.expect("keep_alive", kWantedKeepAlive, *value);
  }
}

// Reads "format": "json", or a JSON schema.
void read_ollama_format(FieldReader& fields, GenerationCall& call) {
  const json::value* format = fields.find("format");
  if (format == nullptr || *format == "") {
    return;
  }
  if (format->is_object()) {
    call.format = json_format(*format, "format");
  } else if (*format == "json") {
    call.format = any_json_object("format");
  } else {
    fields.expect("format", "\"json\" or a JSON schema", *format);
  }
}

void read_shared_fields(FieldReader& fields, GenerationCall& call) {
  call.model = without_latest(fields.string("model").value_or(""));
  call.stream.enabled = fields.boolean("stream").value_or(true);
  call.cut_at_context = true;
  read_options(fields, call);
  read_keep_alive_field(fields, call);
  read_ollama_format(fields, call);
  refuse_ollama_fields(fields);
}

// Gives calls and results the ids that OpenAI's messages have and Ollama's lack: a result answers
// the oldest unanswered call, of its tool_name if it states one. Takes O(log n) for each of n calls
// and results, because a body may hold hundreds of thousands.
class CallIds {
 public:
  void complete(json::object& message) {
    if (json::value* calls = message.if_contains("tool_calls"); calls != nullptr) {
      if (json::array* list = calls->if_array()) {
        for (json::value& call : *list) {
          name_call(call);
        }
      }
    }
    const json::value* role = message.if_contains("role");
    if (role != nullptr && *role == "tool" && !message.contains("tool_call_id")) {
      name_result(message);
    }
  }

 private:
  struct Call {
    std::string id;
    bool is_answered = false;
  };
  // The calls of one tool.
  struct Named {
    std::vector<std::size_t> calls;  // places in calls_
    std::size_t next = 0;            // those before it have a result
  };

  void name_call(json::value& value) {
    json::object* call = value.if_object();
    if (call == nullptr) {
      return;
    }
    call->insert({{"type", "function"}, {"id", fmt::format("call_{}", ++count_)}});  // if missing
    const json::value* function = call->if_contains("function");
    const json::value* name = function == nullptr || !function->is_object()
                                  ? nullptr
                                  : function->get_object().if_contains("name");
    const json::value& id = call->at("id");
    if (id.is_string()) {
      by_name_[name == nullptr || !name->is_string()
                   ? ""
                   : std::string(std::string_view(name->get_string()))]
          .calls.push_back(calls_.size());
      calls_.push_back({std::string(std::string_view(id.get_string()))});
    }
  }

  void name_result(json::object& message) {
    const json::value* tool = message.if_contains("tool_name");
    if (tool == nullptr || !tool->is_string()) {
      while (oldest_ < calls_.size() && calls_[oldest_].is_answered) {
        ++oldest_;
      }
      return oldest_ < calls_.size() ? answer(calls_[oldest_], message) : void();
    }
    const auto named = by_name_.find(std::string_view(tool->get_string()));
    if (named == by_name_.end()) {
      return;
    }
    auto& [calls, next] = named->second;
    while (next < calls.size()) {
      if (Call& call = calls_[calls[next++]]; !call.is_answered) {
        return answer(call, message);
      }
    }
  }

  static void answer(Call& call, json::object& message) {
    message["tool_call_id"] = call.id;
    call.is_answered = true;
  }

  std::vector<Call> calls_;  // in order
  std::map<std::string, Named, std::less<>> by_name_;
  std::size_t oldest_ = 0;  // all calls before it have a result
  int count_ = 0;
};

void refuse_images(const json::array& messages, FieldReader& fields) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const json::object* message = messages[i].if_object();
    const json::value* images = message == nullptr ? nullptr : message->if_contains("images");
    if (images != nullptr && !images->is_null() &&
        !(images->is_array() && images->get_array().empty())) {
      fields.fail("messages", fmt::format("messages[{}].images: this model reads text only", i));
    }
  }
}

// True if an answer is to continue the last message, which is the assistant's.
bool ends_with_assistant(const json::array& messages) {
  const json::object& last = messages.back().get_object();
  return last.at("role") == "assistant" && !last.contains("tool_calls") &&
         last.at("content").is_string() && !last.at("content").get_string().empty();
}

void read_ollama_messages(FieldReader& fields, json::object& body, ChatInput& input) {
  const json::array* messages = fields.array("messages");
  if (messages == nullptr || messages->empty()) {
    return fields.fail("messages", "messages is required: an array of at least one message");
  }
  input.messages = std::move(body["messages"].get_array());
  refuse_images(input.messages, fields);
  CallIds ids;
  for (json::value& message : input.messages) {
    if (json::object* object = message.if_object()) {
      ids.complete(*object);
      object->erase("images");
      object->erase("thinking");
      object->erase("tool_name");
    }
  }
  if (!fields.failed()) {
    check_messages(input.messages, fields);
  }
  if (!fields.failed() && ends_with_assistant(input.messages)) {
    input.continue_final_message = true;
    input.add_generation_prompt = false;
  }
}

// Reads a prompt that is answered as a user's message, or continued as it is if "raw" is true.
void read_prompt(FieldReader& fields, GenerationCall& call) {
  const std::string prompt = fields.string("prompt").value_or("");
  const std::string system = fields.string("system").value_or("");
  if (prompt.empty()) {
    fields.fail("prompt", "prompt is required: a text that is not empty");
  }
  if (std::string suffix = fields.string("suffix").value_or(""); !suffix.empty()) {
    if (!system.empty()) {
      fields.fail("system", "system and suffix exclude each other: nothing is said in code");
    }
    call.input = InfillInput{.prefix = prompt, .suffix = std::move(suffix), .field = "suffix"};
    call.names = {.input = "prompt", .max_tokens = "options.num_predict"};
    return;
  }
  if (fields.boolean("raw").value_or(false)) {
    if (!system.empty()) {
      fields.fail("system", "system and raw exclude each other: raw uses no chat template");
    }
    call.input = CompletionInput{{prompt}};
    return;
  }
  ChatInput input;
  if (!system.empty()) {
    input.messages.push_back(json::object{{"role", "system"}, {"content", system}});
  }
  input.messages.push_back(json::object{{"role", "user"}, {"content", prompt}});
  call.input = std::move(input);
  call.names = {.input = "prompt", .max_tokens = "options.num_predict"};
}

ApiError no_object(const json::value& body) {
  return {.message = "the body must be a JSON object, not " + describe(body)};
}

DialectCall text_call(GenerationCall call, OllamaCall kind) {
  const auto make = [kind](const AnswerIdentity& identity, const Tokenizer&) {
    return make_ollama_writer(identity, kind);
  };
  return {std::move(call), kIdPrefix, make};
}

Checked<DialectCall> read_embedding(json::value& body, std::string_view field,
                                    OllamaEmbedding kind) {
  if (!body.is_object()) {
    return no_object(body);
  }
  FieldReader fields(body.get_object(),
                     field == "input" ? ollama_embed_fields() : ollama_embeddings_fields());
  GenerationCall call;
  call.embedding.emplace();
  call.names.input = field;
  call.max_tokens = 0;
  call.model = without_latest(fields.string("model").value_or(""));
  if (fields.boolean("truncate").value_or(true)) {
    call.prompt.truncate_to = -1;
  }
  call.embedding->dimensions = fields.integer("dimensions");
  read_keep_alive_field(fields, call);
  call.input = read_completion_input(fields, field);
  for (const TextOrTokens& input : std::get<CompletionInput>(call.input).prompts) {
    const std::string* text = std::get_if<std::string>(&input);
    if (text == nullptr || text->empty()) {
      fields.fail(field,
                  fmt::format("{} must be a text or a list of texts, none of them empty", field));
    }
  }
  if (fields.failed()) {
    return *fields.error();
  }
  const auto make = [kind](const AnswerIdentity& identity, const Tokenizer&) {
    return make_ollama_embedding_writer(identity, kind);
  };
  return DialectCall{std::move(call), kIdPrefix, make};
}

bool is_empty(const json::object& body, std::string_view key) {
  const json::value* value = body.if_contains(key);
  return value == nullptr || value->is_null() || *value == "" ||
         (value->is_array() && value->get_array().empty());
}

}  // namespace

std::string without_latest(std::string name) {
  constexpr std::string_view kLatest = ":latest";
  if (name.ends_with(kLatest)) {
    name.erase(name.size() - kLatest.size());
  }
  return name;
}

Checked<DialectCall> read_ollama_chat(json::value body) {
  if (!body.is_object()) {
    return no_object(body);
  }
  FieldReader fields(body.get_object(), kOllamaChatTable);
  GenerationCall call;
  call.input = ChatInput{};
  call.tools = read_tools(fields);
  read_shared_fields(fields, call);
  ChatInput input;
  read_ollama_messages(fields, body.get_object(), input);
  if (fields.failed()) {
    return *fields.error();
  }
  call.input = std::move(input);
  call.names.max_tokens = "options.num_predict";
  return text_call(std::move(call), OllamaCall::kChat);
}

Checked<DialectCall> read_ollama_generate(json::value body) {
  if (!body.is_object()) {
    return no_object(body);
  }
  FieldReader fields(body.get_object(), kOllamaGenerateTable);
  GenerationCall call;
  read_shared_fields(fields, call);
  read_prompt(fields, call);
  if (fields.failed()) {
    return *fields.error();
  }
  return text_call(std::move(call), OllamaCall::kGenerate);
}

Checked<DialectCall> read_ollama_embed(json::value body) {
  return read_embedding(body, "input", OllamaEmbedding::kEmbed);
}

Checked<DialectCall> read_ollama_embeddings(json::value body) {
  return read_embedding(body, "prompt", OllamaEmbedding::kEmbeddings);
}

std::optional<Checked<OllamaLoad>> read_ollama_load(std::string_view text,
                                                    std::int64_t unix_time_s) {
  if (text.size() > kLongestLoadBody) {
    return std::nullopt;
  }
  boost::system::error_code failed;
  const json::value body = json::parse({text.data(), text.size()}, failed);
  const json::object* object = failed ? nullptr : body.if_object();
  if (object == nullptr || !is_empty(*object, "messages") || !is_empty(*object, "prompt")) {
    return std::nullopt;
  }
  const bool chat = object->contains("messages");
  FieldReader fields(*object, kOllamaChatTable);
  GenerationCall call;
  const std::string model = fields.string("model").value_or("");
  read_keep_alive_field(fields, call);
  if (fields.failed()) {
    return *fields.error();
  }
  json::object answer{{"model", model}, {"created_at", ollama_time(unix_time_s)}};
  if (chat) {
    answer["message"] = json::object{{"role", "assistant"}, {"content", ""}};
  } else {
    answer["response"] = "";
  }
  answer["done"] = true;
  answer["done_reason"] = call.keep_loaded_ns == 0 ? "unload" : "load";
  return OllamaLoad{without_latest(model), json::serialize(answer), call.keep_loaded_ns};
}

Fields ollama_chat_fields() {
  return kOllamaChatTable;
}

Fields ollama_generate_fields() {
  return kOllamaGenerateTable;
}

Fields ollama_embed_fields() {
  return kOllamaEmbedTable;
}

Fields ollama_embeddings_fields() {
  return kOllamaEmbeddingsTable;
}

}  // namespace protean

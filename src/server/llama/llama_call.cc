#include "server/llama/llama_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "server/call/answer_format.h"
#include "server/call/sampling_fields.h"
#include "server/llama/llama_answer.h"

namespace protean {
namespace {

namespace json = boost::json;

// Samplers that we do not have, with the value that turns each of them off.
struct MissingSampler {
  std::string_view field;
  double off;
};
constexpr std::array kMissingSamplers{
    MissingSampler{"mirostat", 0},        MissingSampler{"typical_p", 1},
    MissingSampler{"dynatemp_range", 0},  MissingSampler{"dry_multiplier", 0},
    MissingSampler{"xtc_probability", 0}, MissingSampler{"n_probs", 0},
};

constexpr std::array kLlamaSharedTable = joined(
    kSamplingTable, kTokenTable, kStopTable, kUrgencyTable, kFormatTable,
    std::array{
        string_field("model", "The model that answers; the first one of the server by default."),
        boolean_field("stream", "Sends the answer as server-sent events while it is computed."),
        number_field("repeat_penalty", {.low = 0, .high = 100, .low_included = false},
                     "llama-server's name of repetition_penalty."),
        integer_field("n_predict", -2, kNoLimit,
                      "The most tokens of the answer; -1 and -2: as many as fit."),
        boolean_field("return_tokens", "Adds the token ids of the answer."),
        array_field("response_fields", "The only fields of the answer, such as timings/prompt_n.",
                    R"({"items":{"type":"string"}})")});

constexpr std::array kLlamaCompletionTable = joined(
    kLlamaSharedTable,
    std::array{required(any_field("prompt", kTextsOrTokensSchema, "A text, or token ids."))});

constexpr std::array kInfillChunkTable{
    string_field("filename", "The name of the file."),
    required(string_field("text", "Text of the file.")),
};
constexpr std::array kLlamaInfillTable =
    joined(kLlamaSharedTable,
           std::array{required(string_field("input_prefix", "The text before the gap.")),
                      required(string_field("input_suffix", "The text after the gap.")),
                      array_field("input_extra", "Other files that help, the most helpful last.",
                                  {}, kInfillChunkTable),
                      string_field("prompt", "What the filled-in text begins with.")});

void refuse_samplers(FieldReader& fields) {
  for (const auto& [field, off] : kMissingSamplers) {
    const json::value* value = fields.refused(field);
    if (value != nullptr && !(value->is_number() && value->to_number<double>() == off)) {
      fields.fail(field, fmt::format("{} is not supported: leave it out", field));
    }
  }
}

std::vector<std::string> read_response_fields(FieldReader& fields) {
  std::vector<std::string> names;
  if (const json::array* list = fields.array("response_fields")) {
    for (const json::value& name : *list) {
      if (!name.is_string()) {
        fields.fail("response_fields", "response_fields must hold strings, not " + describe(name));
        break;
      }
      names.emplace_back(std::string_view(name.get_string()));
    }
  }
  return names;
}

// Reads the fields of both calls and returns the fields that the answer has.
std::vector<std::string> read_shared(FieldReader& fields, GenerationCall& call) {
  call.model = fields.string("model").value_or("");
  call.sampling = read_sampling(fields);
  if (call.sampling.seed == static_cast<std::uint64_t>(-1)) {  // a random one
    call.sampling.seed.reset();
  }
  if (const auto penalty = fields.number("repeat_penalty")) {
    call.sampling.repetition_penalty = penalty;
  }
  call.tokens = read_token_rules(fields);
  call.stop = read_stop(fields);
  call.urgency = read_urgency(fields);
  call.format = read_format(fields);
  call.stream.enabled = fields.boolean("stream").value_or(false);
  call.report.token_ids = fields.boolean("return_tokens").value_or(false) || call.stream.enabled;
  const std::int64_t most = fields.integer("n_predict").value_or(-1);
  call.max_tokens = most < 0 ? kNoLimit : most;
  call.cut_at_context = true;
  call.names.max_tokens = "n_predict";
  refuse_samplers(fields);
  return read_response_fields(fields);
}

InfillInput read_infill_input(FieldReader& fields) {
  InfillInput input{.prefix = fields.required_string("input_prefix"),
                    .suffix = fields.required_string("input_suffix"),
                    .middle = fields.string("prompt").value_or(""),
                    .field = "input_suffix"};
  const json::array* extra = fields.array("input_extra");
  for (std::size_t i = 0; extra != nullptr && i < extra->size() && !fields.failed(); ++i) {
    const std::string where = fmt::format("input_extra[{}]", i);
    if (!(*extra)[i].is_object()) {
      fields.expect(where, "an object", (*extra)[i]);
      break;
    }
    FieldReader chunk((*extra)[i].get_object(), kInfillChunkTable, where + ".");
    input.extra.push_back({.filename = chunk.string("filename").value_or("tmp"),
                           .text = chunk.required_string("text")});
    fields.adopt(chunk);
  }
  return input;
}

// llama-server's clients send an empty list for an empty object.
void make_object(json::object& body, std::string_view field) {
  const json::value* value = body.if_contains(field);
  if (value != nullptr && value->is_array() && value->get_array().empty()) {
    body.erase(field);
  }
}

Checked<DialectCall> read_llama(json::value body, bool infill) {
  json::object* object = body.if_object();
  if (object == nullptr) {
    return ApiError{.message = "the body must be a JSON object, not " + describe(body)};
  }
  make_object(*object, "logit_bias");
  FieldReader fields(*object, infill ? llama_infill_fields() : llama_completion_fields());
  GenerationCall call;
  std::vector<std::string> names = read_shared(fields, call);
  if (infill) {
    call.input = read_infill_input(fields);
    call.names.input = "input_prefix";
  } else {
    CompletionInput input = read_completion_input(fields, "prompt");
    if (input.prompts.size() > 1) {
      fields.fail("prompt", "prompt must be one text: send others in calls of their own");
    }
    call.input = std::move(input);
  }
  if (fields.failed()) {
    return *fields.error();
  }
  const auto make = [names = std::move(names)](const AnswerIdentity& identity, const Tokenizer&) {
    return make_llama_writer(identity, names);
  };
  return DialectCall{std::move(call), "llama-", make};
}

}  // namespace

Checked<DialectCall> read_llama_completion(json::value body) {
  return read_llama(std::move(body), false);
}

Checked<DialectCall> read_llama_infill(json::value body) {
  return read_llama(std::move(body), true);
}

Fields llama_completion_fields() {
  return kLlamaCompletionTable;
}

Fields llama_infill_fields() {
  return kLlamaInfillTable;
}

}  // namespace protean

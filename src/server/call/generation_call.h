#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/units.h"
#include "contract/request.h"
#include "grammar/grammar.h"
#include "http/api_error.h"

namespace protean {

struct ChatInput {
  boost::json::array messages;  // OpenAI's objects, content parts joined to one text
  boost::json::object template_kwargs;
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer continues the last message's text
};
using TextOrTokens = std::variant<std::string, std::vector<TokenId>>;
struct CompletionInput {
  std::vector<TextOrTokens> prompts;
};

// A file that helps to fill the gap.
struct InfillChunk {
  std::string filename;
  std::string text;
};

// Asks for the text between a prefix and a suffix. The call fails later if the model has no infill
// tokens.
struct InfillInput {
  std::string prefix;
  std::string suffix;
  std::string middle;              // what the answer's text goes on from
  std::vector<InfillChunk> extra;  // files that help, the most helpful last
  std::string field;               // the field of the body that errors name
};

// How the prompt is computed.
struct PromptFields {
  std::optional<bool> add_special_tokens;
  std::optional<std::int64_t> truncate_to;  // keeps the last tokens; -1: as many as fit
  bool echo = false;                        // the answer begins with the prompt
};

// Absent fields take the model's defaults.
struct SamplingFields {
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<std::uint64_t> seed;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
};

// Rules for single tokens. Their ids are not checked against the vocabulary yet.
struct TokenFields {
  std::vector<TokenBias> bias;
  std::vector<TokenId> allowed;  // ascending
  std::vector<std::string> bad_words;
};

struct StopFields {
  std::vector<std::string> strings;
  std::vector<TokenId> token_ids;
  bool ignore_eos = false;
  bool keep_string = false;     // include_stop_str_in_output
  std::int64_t min_tokens = 0;  // stop strings and tokens before are ignored
};

struct StreamFields {
  bool enabled = false;
  bool usage = false;             // a last chunk holds the token counts
  bool continuous_usage = false;  // every chunk holds the token counts so far
};

// What the answer says about single tokens.
struct ReportFields {
  bool logprobs = false;
  int top_logprobs = 0;
  std::optional<int> prompt_logprobs;  // alternatives of each prompt token
  bool token_ids = false;
  bool tokens_as_ids = false;        // "token_id:5" in place of a token's text
  bool show_special_tokens = false;  // in the text

  bool of_tokens() const { return logprobs || token_ids; }
};

// The form that the answer's text must have.
struct AnswerFormat {
  GrammarSource source;
  std::string key;    // equal for equal sources
  std::string field;  // the field of the body that errors name
};

enum class ToolChoice : std::uint8_t { kNone, kAuto, kRequired };
struct ToolFields {
  boost::json::array tools;  // OpenAI's objects, checked
  ToolChoice choice = ToolChoice::kAuto;
  std::string only;      // the function to call if kRequired; empty: any
  bool parallel = true;  // parallel_tool_calls

  // A named function is called once, as OpenAI and vLLM do.
  bool several_calls() const { return parallel && only.empty(); }
  bool offered() const { return !tools.empty() && choice != ToolChoice::kNone; }
};

struct UrgencyFields {
  int priority = 0;
  std::optional<std::int64_t> ttft_ms;     // x-slo-ttft-ms
  std::optional<std::int64_t> timeout_ms;  // for the whole answer
};

struct EmbeddingFields {
  std::optional<std::int64_t> dimensions;  // must be the model's
};

// What a dialect calls its fields, for errors that are found after the body is read.
struct FieldNames {
  std::string_view input = "messages";  // the chat's messages
  std::string_view max_tokens = "max_tokens";
};

// A request for text or embeddings in any dialect. Its fields are checked, but not against the
// model. Fields that we do not support have been refused.
struct GenerationCall {
  std::string model;  // empty: the model that is served
  std::variant<ChatInput, CompletionInput, InfillInput> input;
  PromptFields prompt;
  SamplingFields sampling;
  TokenFields tokens;
  StopFields stop;
  StreamFields stream;
  ReportFields report;
  std::optional<AnswerFormat> format;
  ToolFields tools;
  UrgencyFields urgency;
  std::optional<EmbeddingFields> embedding;  // asks for the prompts' embeddings, not for text
  std::int64_t n = 1;                        // choices per prompt
  std::optional<std::int64_t> max_tokens;
  bool cut_at_context = false;  // max_tokens beyond the context is reduced, not refused
  std::string cache_salt;
  std::optional<TimeNs> keep_loaded_ns;  // how long the model is to stay in memory afterwards
  FieldNames names;

  bool chat() const { return std::holds_alternative<ChatInput>(input); }
  // Returns the number of choices, each an engine request. Choice i answers prompt i / n.
  std::int64_t choices() const;
};

}  // namespace protean

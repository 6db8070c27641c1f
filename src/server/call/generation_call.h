#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "contract/request.h"
#include "grammar/grammar.h"
#include "http/api_error.h"

namespace protean {

struct ChatInput {
  boost::json::array messages;  // OpenAI's objects; content parts are joined to one text
  boost::json::object template_kwargs;
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer goes on with the last message's text
};
using TextOrTokens = std::variant<std::string, std::vector<TokenId>>;
struct CompletionInput {
  std::vector<TextOrTokens> prompts;
};

// What of the prompt is computed.
struct PromptFields {
  std::optional<bool> add_special_tokens;
  std::optional<std::int64_t> truncate_to;  // its last tokens; -1: as many as the model takes
  bool echo = false;                        // the answer begins with it
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

// Rules for single tokens; ids are not yet known to exist.
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
  std::int64_t min_tokens = 0;  // stop strings and tokens are not looked for before
};

struct StreamFields {
  bool enabled = false;
  bool usage = false;             // a last chunk with the token counts
  bool continuous_usage = false;  // and every chunk with those so far
};

// What the answer says of single tokens.
struct ReportFields {
  bool logprobs = false;
  int top_logprobs = 0;
  std::optional<int> prompt_logprobs;  // so many alternatives of each prompt token
  bool token_ids = false;
  bool tokens_as_ids = false;        // "token_id:5" where a token's text would be
  bool show_special_tokens = false;  // in the text

  bool of_tokens() const { return logprobs || token_ids; }
};

// The text must be of this form.
struct AnswerFormat {
  GrammarSource source;
  std::string key;    // equal for equal sources
  std::string field;  // of the body, for complaints
};

enum class ToolChoice : std::uint8_t { kNone, kAuto, kRequired };
struct ToolFields {
  boost::json::array tools;  // OpenAI's objects, checked
  ToolChoice choice = ToolChoice::kAuto;
  std::string only;      // with kRequired: the one function to call; empty: any
  bool parallel = true;  // several calls in one answer

  bool offered() const { return !tools.empty() && choice != ToolChoice::kNone; }
};

struct UrgencyFields {
  int priority = 0;
  std::optional<std::int64_t> ttft_ms;     // x-slo-ttft-ms
  std::optional<std::int64_t> timeout_ms;  // for the whole answer
};

struct EmbeddingFields {
  std::optional<std::int64_t> dimensions;  // no others than the model's are given
};

// What a dialect calls its fields, for complaints that come once the body is read.
struct FieldNames {
  std::string_view input = "messages";  // of a chat
  std::string_view max_tokens = "max_tokens";
};

// A request for text or embeddings of any dialect, checked field by field but not yet against the
// model. What would change the answer and is not implemented has been refused.
struct GenerationCall {
  std::string model;  // empty: whichever is served
  std::variant<ChatInput, CompletionInput> input;
  PromptFields prompt;
  SamplingFields sampling;
  TokenFields tokens;
  StopFields stop;
  StreamFields stream;
  ReportFields report;
  std::optional<AnswerFormat> format;
  ToolFields tools;
  UrgencyFields urgency;
  std::optional<EmbeddingFields> embedding;  // no text is asked for, but the prompts' embeddings
  std::int64_t n = 1;                        // choices per prompt
  std::optional<std::int64_t> max_tokens;
  bool cut_at_context = false;  // what of max_tokens does not fit there is not asked for
  std::string cache_salt;
  FieldNames names;

  bool chat() const { return std::holds_alternative<ChatInput>(input); }
  // Of the answer: engine requests it takes. Choice i is of prompt i / n.
  std::int64_t choices() const;
};

}  // namespace protean

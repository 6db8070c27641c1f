#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "server/api_error.h"

namespace protean {

struct ChatInput {
  boost::json::array messages;  // OpenAI's objects; content parts are joined to one text
  boost::json::object template_kwargs;
  bool add_generation_prompt = true;
};
using TextOrTokens = std::variant<std::string, std::vector<TokenId>>;
// One choice of the answer per prompt, in this order.
struct CompletionInput {
  std::vector<TextOrTokens> prompts;
};

// Absent fields take the model's defaults.
struct SamplingFields {
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<std::uint64_t> seed;
};

struct StopFields {
  std::vector<std::string> strings;
  std::vector<TokenId> token_ids;
  bool ignore_eos = false;
  bool keep_string = false;  // include_stop_str_in_output
};

struct StreamFields {
  bool enabled = false;
  bool usage = false;             // a last chunk with the token counts
  bool continuous_usage = false;  // and every chunk with those so far
};

// The body of a completion request of either kind, checked field by field but not yet against the
// model. What would change the answer and is not implemented has been refused.
struct GenerationCall {
  std::string model;  // empty: whichever is served
  std::variant<ChatInput, CompletionInput> input;
  SamplingFields sampling;
  StopFields stop;
  StreamFields stream;
  std::optional<std::int64_t> max_tokens;
  std::optional<bool> add_special_tokens;
  std::string cache_salt;

  bool chat() const { return std::holds_alternative<ChatInput>(input); }
  std::int64_t choices() const;  // of the answer: engine requests it takes
};

Checked<GenerationCall> parse_chat_call(boost::json::value body);
Checked<GenerationCall> parse_completion_call(boost::json::value body);

}  // namespace protean

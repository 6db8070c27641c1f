#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace protean::loadtest {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;  // of the prompt, from a prefix cache; 0 where not told
};

// What a load generator wants to know of one streamed chunk, chat or completion.
struct AnswerChunk {
  bool has_choice = false;
  bool has_text = false;      // text, reasoning or a tool call: something that was generated
  std::string finish_reason;  // empty until the last one
  std::optional<Usage> usage;
  std::string error;  // message of an error event; empty: none
};

// `data` is that of an SSE event and not "[DONE]". Fails on what is no JSON object.
Result<AnswerChunk> parse_answer_chunk(std::string_view data);

// The message of an error body, whatever the dialect: {"error": {"message"}}, {"error": "..."},
// {"message"}, {"detail"}; else the beginning of the body itself.
std::string error_message_of(std::string_view body);

}  // namespace protean::loadtest

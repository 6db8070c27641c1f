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
  std::int64_t cached_tokens =
      0;  // prompt tokens from a prefix cache; 0 if the server reports none
};

// The fields of one streamed chunk, chat or completion, that a load generator uses.
struct AnswerChunk {
  bool has_choice = false;
  bool has_text = false;      // text, reasoning or a tool call
  std::string finish_reason;  // empty in all chunks but the last
  std::optional<Usage> usage;
  std::string error;  // message of an error event, else empty
};

// Parses the data of an SSE event other than "[DONE]". Fails if it is not a JSON object.
Result<AnswerChunk> parse_answer_chunk(std::string_view data);

// Returns the message of an error body: from {"error": {"message"}}, {"error": "..."}, {"message"}
// or {"detail"}, else the beginning of the body.
std::string error_message_of(std::string_view body);

}  // namespace protean::loadtest

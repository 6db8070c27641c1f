#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "server/answer/answer_writer.h"

namespace protean {

// Makes a writer of the answers to POST /v1/chat/completions and /v1/completions.
Checked<DialectCall> read_chat_call(boost::json::value body);
Checked<DialectCall> read_completion_call(boost::json::value body);

// Returns {"prompt_tokens":...}, which all kinds of OpenAI's answers have.
std::string usage_json(const AnswerUsage& usage);

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
std::string sse_event(std::string_view json);

}  // namespace protean

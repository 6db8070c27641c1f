#pragma once

#include <memory>
#include <string>

#include "server/answer/answer_writer.h"

namespace protean {

// What a response repeats of its request.
struct ResponsesEcho {
  std::string fields;     // JSON without braces: "tools":[],"top_p":null
  bool logprobs = false;  // if true, tokens are reported with top_logprobs alternatives
  int top_logprobs = 0;
};

// Writes answers of OpenAI's Responses API: items, each a message or a function call, and numbered
// events about them. A failure is written as an error event and response.failed.
std::unique_ptr<AnswerWriter> make_responses_writer(const AnswerIdentity& identity,
                                                    const Tokenizer& tokenizer, ResponsesEcho echo);

}  // namespace protean

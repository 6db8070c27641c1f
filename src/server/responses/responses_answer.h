#pragma once

#include <memory>
#include <string>

#include "server/answer/answer_writer.h"

namespace protean {

// What a response says of the request it answers.
struct ResponsesEcho {
  std::string fields;     // of the response object, as JSON without braces: "tools":[],"top_p":null
  bool logprobs = false;  // asked for, with so many alternatives:
  int top_logprobs = 0;
};

// Writes answers of OpenAI's Responses API: items, each a message or a function call, and numbered
// events around them. After a failure come an error event and response.failed.
std::unique_ptr<AnswerWriter> make_responses_writer(const AnswerIdentity& identity,
                                                    const Tokenizer& tokenizer, ResponsesEcho echo);

}  // namespace protean

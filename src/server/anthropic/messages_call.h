#pragma once

#include <boost/json/value.hpp>

#include "server/answer/answer_writer.h"
#include "server/openai/text_endpoints.h"

namespace protean {

// Reads the body of Anthropic's POST /v1/messages. Refuses images, documents, server tools and
// thinking by name. Ignores cache_control, because prefixes are always cached.
Checked<DialectCall> read_messages_call(boost::json::value body);

// Reads the body of POST /v1/messages/count_tokens, which has no max_tokens. The answer is
// {"input_tokens":...}.
Checked<TextCall> read_messages_count(boost::json::value body);

Fields messages_fields();
Fields messages_count_fields();

}  // namespace protean

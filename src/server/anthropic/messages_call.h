#pragma once

#include <boost/json/value.hpp>

#include "server/answer/answer_writer.h"
#include "server/openai/text_endpoints.h"

namespace protean {

// The body of Anthropic's POST /v1/messages. Images, documents, server tools and thinking are
// refused by name; hints to a cache, of which we need none, are passed over.
Checked<DialectCall> read_messages_call(boost::json::value body);

// That of POST /v1/messages/count_tokens, which has no max_tokens: {"input_tokens":...}.
Checked<TextCall> read_messages_count(boost::json::value body);

}  // namespace protean

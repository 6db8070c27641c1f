#pragma once

#include <boost/json/value.hpp>

#include "server/call/field.h"
#include "server/call/generation_call.h"

namespace protean {

// Read the bodies of POST /v1/chat/completions and POST /v1/completions.
Checked<GenerationCall> parse_chat_call(boost::json::value body);
Checked<GenerationCall> parse_completion_call(boost::json::value body);

Fields chat_fields();
Fields completion_fields();

}  // namespace protean

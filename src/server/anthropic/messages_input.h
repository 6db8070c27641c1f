#pragma once

#include <boost/json/array.hpp>

#include "server/call/field_reader.h"

namespace protean {

// Reads system and messages of Anthropic's Messages API as OpenAI's chat messages. Consecutive
// turns of one role become one turn, as in that API. A tool result that is an error begins with
// "Error: ". Blocks other than text and tool blocks are refused by name.
boost::json::array read_messages_input(FieldReader& fields);

}  // namespace protean

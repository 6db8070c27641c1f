#pragma once

#include <boost/json/array.hpp>

#include "server/call/field_reader.h"

namespace protean {

// The system and messages of a body of Anthropic's Messages API as OpenAI's chat messages. Turns of
// one role that follow each other are one turn, as in that API; a tool result that is an error is
// told so by a leading "Error: ". What is no text and no tool block is refused by name.
boost::json::array read_messages_input(FieldReader& fields);

}  // namespace protean

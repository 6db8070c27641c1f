#pragma once

#include <boost/json/object.hpp>

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// Reads the messages of a chat and how they are shown to the model. Moves the messages out of
// `body`, which `fields` reads. Roles must be known, content must be text, and tool results must
// answer a call.
ChatInput read_chat_input(FieldReader& fields, boost::json::object& body);

// Checks OpenAI's message objects and brings them into the form that chat templates expect: content
// parts are joined, and "developer" becomes "system".
void check_messages(boost::json::array& messages, FieldReader& fields);

}  // namespace protean

#pragma once

#include <boost/json/object.hpp>

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// The messages of a chat and how they are shown to the model. Takes the messages out of `body`,
// which `fields` reads. Roles are known ones, content is text, tool results answer a call.
ChatInput read_chat_input(FieldReader& fields, boost::json::object& body);

// Checks OpenAI's message objects and brings them into the form templates are written for: content
// parts joined, "developer" called "system".
void check_messages(boost::json::array& messages, FieldReader& fields);

}  // namespace protean

#pragma once

#include <boost/json/array.hpp>

#include "server/call/field_reader.h"

namespace protean {

// The instructions and input of a body of OpenAI's Responses API as chat messages: text items, and
// function calls with their outputs. A developer is the system, by which chat templates know it.
// What else there is, images or items kept at a server, is refused by name.
boost::json::array read_responses_input(FieldReader& fields);

}  // namespace protean

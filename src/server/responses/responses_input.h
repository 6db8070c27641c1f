#pragma once

#include <boost/json/array.hpp>

#include "server/call/field_reader.h"

namespace protean {

// Reads instructions and input of OpenAI's Responses API as chat messages: text items, and function
// calls with their outputs. The role "developer" becomes "system", which chat templates know. Other
// items, such as images and references to stored items, are refused by name.
boost::json::array read_responses_input(FieldReader& fields);

}  // namespace protean

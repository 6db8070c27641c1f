#pragma once

#include <boost/json/value.hpp>

#include "server/answer/answer_writer.h"
#include "server/call/field.h"

namespace protean {

// Reads the body of OpenAI's POST /v1/responses. Nothing is stored, so fields that refer to stored
// objects are refused by name, and so are tools other than functions.
Checked<DialectCall> read_responses_call(boost::json::value body);
Fields responses_fields();

}  // namespace protean

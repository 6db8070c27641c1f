#pragma once

#include <boost/json/value.hpp>

#include "server/answer/answer_writer.h"

namespace protean {

// The body of OpenAI's POST /v1/responses. Nothing is stored, so what refers to something stored is
// refused by name, as are tools that are no functions.
Checked<DialectCall> read_responses_call(boost::json::value body);

}  // namespace protean

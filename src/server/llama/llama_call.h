#pragma once

#include <boost/json/value.hpp>

#include "server/answer/answer_writer.h"
#include "server/call/field.h"

namespace protean {

// Read the bodies of llama-server's POST /completion and POST /infill. Fields about slots, caches
// and the order of samplers have no effect; samplers that we do not have are refused unless they
// are off.
Checked<DialectCall> read_llama_completion(boost::json::value body);
Checked<DialectCall> read_llama_infill(boost::json::value body);

Fields llama_completion_fields();
Fields llama_infill_fields();

}  // namespace protean

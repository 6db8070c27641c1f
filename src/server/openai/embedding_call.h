#pragma once

#include <boost/json/value.hpp>

#include "server/answer/answer_writer.h"
#include "server/call/field.h"

namespace protean {

// Reads the body of POST /v1/embeddings. The answer has a vector of unit length for each input, as
// numbers or as base64 of little-endian 32-bit floats.
Checked<DialectCall> read_embedding_call(boost::json::value body);
Fields embedding_fields();

}  // namespace protean

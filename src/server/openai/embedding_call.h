#pragma once

#include <boost/json/value.hpp>

#include "server/answer/answer_writer.h"

namespace protean {

// The body of POST /v1/embeddings: one vector per input, of unit length, as numbers or as base64
// of little-endian 32-bit floats.
Checked<DialectCall> read_embedding_call(boost::json::value body);

}  // namespace protean

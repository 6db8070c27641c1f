#pragma once

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// Reads the form that the answer's text must have, from response_format, structured_outputs, vLLM's
// older guided_* or llama-server's json_schema. A body may have one of them.
std::optional<AnswerFormat> read_format(FieldReader& fields);

// Return a JSON schema as a format. `field` is the field of the body that asked for it.
AnswerFormat json_format(const boost::json::value& schema, std::string_view field);
AnswerFormat any_json_object(std::string_view field);

}  // namespace protean

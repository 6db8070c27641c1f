#pragma once

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// What form a body wants the answer's text to have: response_format, structured_outputs, vLLM's
// older guided_* and llama-server's json_schema. At most one of them.
std::optional<AnswerFormat> read_format(FieldReader& fields);

// A JSON schema as a format; `field` is where it came from.
AnswerFormat json_format(const boost::json::value& schema, std::string_view field);
AnswerFormat any_json_object(std::string_view field);

}  // namespace protean

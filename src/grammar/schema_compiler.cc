#include "grammar/schema_compiler.h"

#include "grammar/json_text.h"

namespace protean::grammar {

Status emit_schema(AutomatonBuilder& builder, const JsonSchema& schema, StateId from, StateId to) {
  JsonText text(builder, schema.any_whitespace);
  if (schema.schema == boost::json::value(true)) {
    text.any_value(from, to);
    return {};
  }
  return make_error(ErrorCode::kUnsupported, "schemas are on their way");
}

}  // namespace protean::grammar

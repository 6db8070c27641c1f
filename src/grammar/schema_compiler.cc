#include "grammar/schema_compiler.h"

#include "grammar/schema_rules.h"

namespace protean::grammar {

Status emit_schema(AutomatonBuilder& builder, const JsonSchema& schema, StateId from, StateId to) {
  const Result<SchemaDocument> document = SchemaDocument::read(schema.schema);
  if (!document) {
    return document.error();
  }
  SchemaRules rules(builder, *document, {schema.any_whitespace, schema.open_properties});
  builder.call(from, rules.rule({{document->root()}}), to);
  return rules.finish();
}

}  // namespace protean::grammar

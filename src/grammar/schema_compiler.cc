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

Status emit_tagged(AutomatonBuilder& builder, const TaggedArguments& arguments, StateId from,
                   StateId to) {
  const Result<SchemaDocument> document = SchemaDocument::read(arguments.object.schema);
  if (!document) {
    return document.error();
  }
  SchemaRules rules(builder, *document,
                    {arguments.object.any_whitespace, arguments.object.open_properties});
  Status status = rules.emit_tagged(arguments, from, to);
  return status ? rules.finish() : status;
}

}  // namespace protean::grammar

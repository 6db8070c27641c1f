#include "grammar/schema_compiler.h"

#include "grammar/schema_rules.h"

namespace protean::grammar {

namespace {

// Calls `emit` with the rules of `schema` and its root, then finishes the rules.
template <class Emit>
Status with_rules(AutomatonBuilder& builder, const JsonSchema& schema, Emit emit) {
  const Result<SchemaDocument> document = SchemaDocument::read(schema.schema);
  if (!document) {
    return document.error();
  }
  Result<JsonGaps> gaps = JsonGaps::parse(schema.whitespace);
  if (!gaps) {
    return gaps.error();
  }
  SchemaRules rules(builder, *document, *std::move(gaps), schema.open_properties);
  const Status status = emit(rules, document->root());
  return status ? rules.finish() : status;
}

}  // namespace

Status emit_schema(AutomatonBuilder& builder, const JsonSchema& schema, StateId from, StateId to) {
  return with_rules(builder, schema, [&](SchemaRules& rules, const SchemaPlace& root) -> Status {
    builder.call(from, rules.rule({{root}}), to);
    return {};
  });
}

Status emit_tagged(AutomatonBuilder& builder, const TaggedArguments& arguments, StateId from,
                   StateId to) {
  return with_rules(builder, arguments.object, [&](SchemaRules& rules, const SchemaPlace&) {
    return rules.emit_tagged(arguments, from, to);
  });
}

}  // namespace protean::grammar

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/schema_document.h"
#include "grammar/schema_facets.h"

namespace protean::grammar {

// One schema of a conjunction. Its anyOf and oneOf are done if an alternative was chosen.
struct SchemaItem {
  SchemaPlace place;
  bool any_of_done = false;
  bool one_of_done = false;
};

// Schemas that one value must all satisfy, from allOf, from $ref next to other keywords and from
// chosen alternatives. None is in it twice.
using Conjunction = std::vector<SchemaItem>;

struct Alternatives {
  std::string_view keyword;  // "anyOf" or "oneOf"
  SchemaPlace place;         // the schema that has the keyword
  std::vector<Conjunction> options;
};

// Returns the conjunction with $ref and allOf resolved, without schemas that limit nothing. Fails
// with kInvalidArgument if a schema is defined by itself alone.
Result<Conjunction> flattened(const SchemaDocument& document, const Conjunction& schemas);

// Returns the first anyOf or oneOf that is not done. Each option is the whole conjunction with one
// alternative chosen.
Result<std::optional<Alternatives>> alternatives(const Conjunction& flat);

// Returns what the schemas say apart from anyOf and oneOf.
Result<Facets> facets_of(const Conjunction& flat);

std::string key_of(const Conjunction& schemas);

// Returns true if types, numbers, constants and required properties show that no value satisfies
// both conjunctions.
Result<bool> surely_disjoint(const SchemaDocument& document, const Conjunction& a,
                             const Conjunction& b);

}  // namespace protean::grammar

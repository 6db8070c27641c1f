#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/schema_document.h"
#include "grammar/schema_facets.h"

namespace protean::grammar {

// A schema that holds together with others; of its anyOf and oneOf an alternative may have been
// taken already.
struct SchemaItem {
  SchemaPlace place;
  bool any_of_done = false;
  bool one_of_done = false;
};

// Schemas that all hold of one value: what allOf, $ref beside other keywords and chosen
// alternatives come to. Nothing is in it twice.
using Conjunction = std::vector<SchemaItem>;

struct Alternatives {
  std::string_view keyword;  // "anyOf" or "oneOf"
  SchemaPlace place;         // of the schema that has it
  std::vector<Conjunction> options;
};

// With $ref and allOf taken apart, and without what limits nothing. kInvalidArgument for a schema
// that is defined by itself alone.
Result<Conjunction> flattened(const SchemaDocument& document, const Conjunction& schemas);

// The first anyOf or oneOf that is not decided; each option is the whole conjunction with it.
Result<std::optional<Alternatives>> alternatives(const Conjunction& flat);

// What they say beside anyOf and oneOf.
Result<Facets> facets_of(const Conjunction& flat);

std::string key_of(const Conjunction& schemas);

// Is it certain that no value satisfies both? Judged by types, numbers, constants and required
// properties; false when that does not show it.
Result<bool> surely_disjoint(const SchemaDocument& document, const Conjunction& a,
                             const Conjunction& b);

}  // namespace protean::grammar

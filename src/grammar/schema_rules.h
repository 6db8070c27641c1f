#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/json_text.h"
#include "grammar/schema_conjunction.h"

namespace protean::grammar {

// Emits each conjunction of schemas once, as a rule to call, so that recursive schemas are
// recursive calls. Rules wait in a queue, so that a deep schema needs no deep recursion here.
class SchemaRules {
 public:
  static constexpr std::size_t kMaxRules = 8000;

  // Refers to the builder and the document.
  SchemaRules(AutomatonBuilder& builder, const SchemaDocument& document, JsonGaps gaps,
              bool open_properties);

  // Returns the state to call. finish() emits its edges.
  StateId rule(const Conjunction& schemas);
  // Emits the members of the object that the document describes, between tags.
  Status emit_tagged(const TaggedArguments& tags, StateId from, StateId to);
  Status finish();

 private:
  struct Waiting {
    Conjunction schemas;
    StateId start = 0;
  };
  // The properties that may come: the named ones in their order, then others.
  struct Property {
    std::string name;
    StateId value = 0;
    bool required = false;
    Conjunction schemas;
  };
  struct OtherProperties {
    StateId name = 0;  // name and value are rules to call
    StateId value = 0;
  };
  struct ObjectRules {
    std::vector<Property> named;
    std::vector<OtherProperties> others;
    LengthRange size;
    bool possible = true;
  };

  Status emit(const Waiting& rule);
  Status emit_alternatives(const Alternatives& found, StateId from);
  Status check_apart(const Alternatives& found) const;  // fails if those of oneOf may overlap
  Status emit_member(const TaggedArguments& tags, const Property& property, StateId from,
                     StateId to);
  // Emits a string without quotes, in which `end` does not occur.
  Status emit_plain(const Conjunction& schemas, const std::string& end,
                    std::pair<StateId, StateId> ends, int depth);
  Status emit_values(const Facets& facets, StateId from, StateId to);
  void emit_numbers(const Facets& facets, std::uint32_t types, StateId from, StateId to);
  Status emit_string(const Facets& facets, StateId from, StateId to);
  Result<Language> string_language(const Facets& facets) const;
  Status emit_array(const Facets& facets, StateId from, StateId to);
  void emit_items(const std::vector<StateId>& first, StateId rest, LengthRange length,
                  std::pair<StateId, StateId> ends);
  void close_array(StateId from, StateId to);

  Status emit_object(const Facets& facets, StateId from, StateId to);
  Result<ObjectRules> object_rules(const Facets& facets);
  Status plan_named(const Facets& facets, const std::vector<Language>& allowed, ObjectRules& plan);
  Status plan_others(const Facets& facets, const std::vector<Language>& allowed, ObjectRules& plan);
  Result<std::vector<Language>> allowed_names(const Facets& facets) const;
  Status emit_members(const ObjectRules& plan, StateId from, StateId to);
  StateId quoted(const Language& language);
  void emit_others(const ObjectRules& plan, std::uint32_t before, StateId from, StateId close);

  AutomatonBuilder* builder_;
  const SchemaDocument* document_;
  bool open_properties_;
  JsonText text_;
  std::unordered_map<std::string, StateId> rules_;
  std::deque<Waiting> waiting_;
};

}  // namespace protean::grammar

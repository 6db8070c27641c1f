// Emits the members of an object between tags instead of within braces.

#include <algorithm>

#include "grammar/schema_rules.h"

namespace protean::grammar {

namespace {

constexpr int kMostAlternatives = 64;  // nested

Error not_between_tags(const SchemaPlace& place, std::string_view keyword) {
  return make_error(ErrorCode::kUnsupported,
                    "schema at '{}/{}': it cannot be kept to in this model's form of tool calls, "
                    "whose arguments stand between tags",
                    place.pointer, keyword);
}

}  // namespace

Status SchemaRules::emit_tagged(const TaggedArguments& tags, StateId from, StateId to) {
  const Result<Conjunction> flat = flattened(*document_, {{document_->root()}});
  if (!flat) {
    return flat.error();
  }
  const Result<std::optional<Alternatives>> options = alternatives(*flat);
  if (!options) {
    return options.error();
  }
  if (options->has_value()) {
    return not_between_tags((*options)->place, (*options)->keyword);
  }
  const Result<Facets> facets = facets_of(*flat);
  if (!facets) {
    return facets.error();
  }
  if (facets->values) {
    return not_between_tags(facets->place, "enum");
  }
  const Result<ObjectRules> plan = object_rules(*facets);
  if (!plan) {
    return plan.error();
  }
  if (plan->size.least > 0 || plan->size.most < plan->named.size()) {
    return not_between_tags(facets->place,
                            plan->size.least > 0 ? "minProperties" : "maxProperties");
  }
  if (!plan->possible || (facets->types & kObject) == 0) {
    return {};  // no text matches
  }
  // Properties that are not named are optional and are left out.
  for (const Property& property : plan->named) {
    const StateId next = builder_->state();
    if (Status status = emit_member(tags, property, from, next); !status) {
      return status;
    }
    if (!property.required) {
      builder_->go(from, next);
    }
    from = next;
  }
  builder_->go(from, to);
  return {};
}

Status SchemaRules::emit_member(const TaggedArguments& tags, const Property& property, StateId from,
                                StateId to) {
  if (property.name.find_first_of("<>\n") != std::string::npos) {
    return make_error(ErrorCode::kUnsupported,
                      "the argument '{}' has a name that cannot stand in this model's form of tool "
                      "calls",
                      property.name);
  }
  const StateId value = builder_->state();
  const StateId after = builder_->state();
  builder_->literal(from, tags.before_key + property.name + tags.before_value, value);
  builder_->literal(after, tags.after_value, to);
  const bool text =
      std::find(tags.texts.begin(), tags.texts.end(), property.name) != tags.texts.end();
  if (text) {
    return emit_plain(property.schemas, tags.text_end, {value, after}, 0);
  }
  builder_->call(value, property.value, after);
  return {};
}

Status SchemaRules::emit_plain(const Conjunction& schemas, const std::string& end,
                               std::pair<StateId, StateId> ends, int depth) {
  const Result<Conjunction> flat = flattened(*document_, schemas);
  if (!flat) {
    return flat.error();
  }
  const Result<std::optional<Alternatives>> options = alternatives(*flat);
  if (!options) {
    return options.error();
  }
  if (options->has_value()) {
    if (depth == kMostAlternatives) {
      return not_between_tags((*options)->place, (*options)->keyword);
    }
    if (Status status = check_apart(**options); !status) {
      return status;
    }
    for (const Conjunction& option : (*options)->options) {
      if (Status status = emit_plain(option, end, ends, depth + 1); !status) {
        return status;
      }
    }
    return {};
  }
  const Result<Facets> facets = facets_of(*flat);
  if (!facets) {
    return facets.error();
  }
  if (facets->string_length.least > facets->string_length.most) {
    return {};
  }
  const Result<Language> without_end = Language::containing({end}).complement();
  Result<Language> language = string_language(*facets);
  if (language && facets->values) {
    std::vector<std::string> texts;
    for (const boost::json::value* value : *facets->values) {
      if (value->is_string() && keeps_to(*value, *facets).value_or(false)) {
        texts.emplace_back(text_of(value->get_string()));
      }
    }
    language = Language::literals(texts);
  }
  if (language && without_end) {
    language = language->intersect(*without_end);
  }
  if (!language || !without_end) {
    const Error& error = language ? without_end.error() : language.error();
    return make_error(error.code, "schema at '{}': {}", facets->place.pointer, error.message);
  }
  language->emit(*builder_, ends.first, Spelling::kPlain, ends.second);
  return {};
}

}  // namespace protean::grammar

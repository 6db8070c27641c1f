#include "grammar/schema_rules.h"

#include <algorithm>

namespace protean::grammar {

SchemaRules::SchemaRules(AutomatonBuilder& builder, const SchemaDocument& document, JsonGaps gaps,
                         bool open_properties)
    : builder_(&builder),
      document_(&document),
      open_properties_(open_properties),
      text_(builder, std::move(gaps)) {}

StateId SchemaRules::rule(const Conjunction& schemas) {
  const auto [it, fresh] = rules_.try_emplace(key_of(schemas), 0);
  if (fresh) {
    it->second = builder_->state();
    waiting_.push_back({schemas, it->second});
  }
  return it->second;
}

Status SchemaRules::finish() {
  while (!waiting_.empty() && !builder_->exhausted()) {
    if (rules_.size() > kMaxRules) {
      return make_error(ErrorCode::kExhausted,
                        "a schema has more than {} different combinations of its parts; use fewer "
                        "anyOf and oneOf within each other",
                        kMaxRules);
    }
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    if (Status status = emit(next); !status) {
      return status;
    }
  }
  return {};
}

Status SchemaRules::emit(const Waiting& rule) {
  const Result<Conjunction> flat = flattened(*document_, rule.schemas);
  if (!flat) {
    return flat.error();
  }
  const Result<std::optional<Alternatives>> options = alternatives(*flat);
  if (!options) {
    return options.error();
  }
  if (options->has_value()) {
    return emit_alternatives(**options, rule.start);
  }
  const StateId end = builder_->state();
  builder_->final(end);
  if (flat->empty()) {
    text_.any_value(rule.start, end);
    return {};
  }
  const Result<Facets> facets = facets_of(*flat);
  if (!facets) {
    return facets.error();
  }
  if (facets->values) {
    return emit_values(*facets, rule.start, end);
  }
  const std::uint32_t types = facets->written_types();
  if ((types & kNull) != 0) {
    builder_->literal(rule.start, "null", end);
  }
  if ((types & kBoolean) != 0) {
    builder_->literal(rule.start, "true", end);
    builder_->literal(rule.start, "false", end);
  }
  emit_numbers(*facets, types, rule.start, end);
  Status status;
  if ((types & kString) != 0) {
    status = emit_string(*facets, rule.start, end);
  }
  if (status && (types & kArray) != 0) {
    status = emit_array(*facets, rule.start, end);
  }
  if (status && (types & kObject) != 0) {
    status = emit_object(*facets, rule.start, end);
  }
  return status;
}

Status SchemaRules::check_apart(const Alternatives& found) const {
  constexpr std::size_t kMostOneOf = 100;  // they are compared in pairs
  if (found.keyword == "oneOf") {
    if (found.options.size() > kMostOneOf) {
      return make_error(ErrorCode::kExhausted,
                        "schema at '{}/oneOf': it has more than {} alternatives; use anyOf",
                        found.place.pointer, kMostOneOf);
    }
    for (std::size_t i = 0; i < found.options.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const Result<bool> apart = surely_disjoint(*document_, found.options[j], found.options[i]);
        if (!apart) {
          return apart.error();
        }
        if (!*apart) {
          return make_error(ErrorCode::kUnsupported,
                            "schema at '{}/oneOf': a value may satisfy both alternative {} and {}, "
                            "and that cannot be prevented; use anyOf, or give them different types "
                            "or a required property with different constants",
                            found.place.pointer, j, i);
        }
      }
    }
  }
  return {};
}

Status SchemaRules::emit_alternatives(const Alternatives& found, StateId from) {
  if (Status status = check_apart(found); !status) {
    return status;
  }
  for (const Conjunction& option : found.options) {
    const Result<Conjunction> flat = flattened(*document_, option);
    if (!flat) {
      return flat.error();
    }
    builder_->go(from, rule(*flat));  // a rule's final state ends this one as well
  }
  return {};
}

Status SchemaRules::emit_values(const Facets& facets, StateId from, StateId to) {
  for (const boost::json::value* value : *facets.values) {
    const std::optional<bool> kept = keeps_to(*value, facets);
    if (!kept) {
      return make_error(ErrorCode::kUnsupported,
                        "schema at '{}': enum or const with an array or object together with "
                        "keywords that limit arrays or objects is not supported",
                        facets.place.pointer);
    }
    if (*kept) {
      text_.literal(from, *value, to);
    }
  }
  return {};
}

void SchemaRules::emit_numbers(const Facets& facets, std::uint32_t types, StateId from,
                               StateId to) {
  if ((types & (kInteger | kFraction)) == 0) {
    return;
  }
  const bool whole = (types & kFraction) == 0;
  if (facets.numbers_limited) {
    DecimalRange range = facets.numbers;
    range.fraction_digits = whole ? 0 : range.fraction_digits;
    if (!range.empty()) {
      emit_range(*builder_, from, range, to);
    }
  } else if (whole) {
    text_.integer(from, to);
  } else {
    text_.number(from, to);
  }
}

Result<Language> SchemaRules::string_language(const Facets& facets) const {
  Result<Language> all =
      Language::any(facets.string_length.any() ? 0 : facets.string_length.least,
                    facets.string_length.any() ? kNoLimit : facets.string_length.most);
  bool first = facets.string_length.any();
  for (const Language& language : facets.string_languages) {
    if (all) {
      all = std::exchange(first, false) ? language : all->intersect(language);
    }
  }
  return all;
}

Status SchemaRules::emit_string(const Facets& facets, StateId from, StateId to) {
  if (facets.string_length.least > facets.string_length.most) {
    return {};
  }
  if (facets.string_languages.empty()) {
    text_.string(from, facets.string_length.least, facets.string_length.most, to);
    return {};
  }
  const Result<Language> language = string_language(facets);
  if (!language) {
    return make_error(language.error().code, "schema at '{}': {}", facets.place.pointer,
                      language.error().message);
  }
  builder_->call(from, quoted(*language), to);
  return {};
}

void SchemaRules::close_array(StateId from, StateId to) {
  const StateId close = builder_->state();
  text_.gap(from, close);
  builder_->bytes(close, ']', ']', to);
}

Status SchemaRules::emit_array(const Facets& facets, StateId from, StateId to) {
  constexpr std::uint32_t kMostSpelt = 4096;
  LengthRange length = facets.array_length;
  std::size_t spelt = 1;  // places with a schema of their own, and one for all that follow
  for (const ItemKeywords& part : facets.items) {
    spelt = std::max(spelt, part.prefix.size() + 1);
  }
  if (spelt > kMostSpelt) {
    return make_error(ErrorCode::kExhausted, "schema at '{}/prefixItems': more than {} items",
                      facets.place.pointer, kMostSpelt);
  }
  std::vector<StateId> places;
  for (std::size_t i = 0; i < spelt; ++i) {
    Conjunction item;
    for (const ItemKeywords& part : facets.items) {
      if (i < part.prefix.size() || part.rest) {
        item.push_back({i < part.prefix.size() ? part.prefix[i] : *part.rest});
      }
    }
    const bool never = std::any_of(item.begin(), item.end(),
                                   [](const SchemaItem& one) { return one.place.is_false(); });
    if (never) {
      length.most = std::min(length.most, static_cast<std::uint32_t>(i));
    }
    places.push_back(rule(item));
  }
  if (facets.unique_items && length.most > 1) {
    return unsupported_keyword(facets.place, "uniqueItems");
  }
  if (length.least <= length.most) {
    const StateId rest = places.back();
    emit_items(places, rest, length, {from, to});
  }
  return {};
}

void SchemaRules::emit_items(const std::vector<StateId>& first, StateId rest, LengthRange length,
                             std::pair<StateId, StateId> ends) {
  const StateId open = builder_->state();
  StateId at = builder_->state();
  builder_->bytes(ends.first, '[', '[', open);
  text_.gap(open, at);
  const auto item = [&](StateId from, StateId what, bool optional, bool after_comma) {
    const StateId chosen = builder_->state();
    const StateId begin = builder_->state();
    const StateId after = builder_->state();
    optional ? builder_->open(from, chosen) : builder_->go(from, chosen);
    after_comma ? text_.comma(chosen, begin) : builder_->go(chosen, begin);
    builder_->call(begin, what, after);
    return after;
  };
  std::uint32_t count = 0;
  for (const StateId what : first) {
    if (count >= length.least) {
      close_array(at, ends.second);
    }
    if (count >= length.most) {
      return;
    }
    at = item(at, what, count >= length.least, count > 0);
    ++count;
  }
  const std::uint32_t most = length.most == kNoLimit ? kNoLimit : length.most - count;
  const std::uint32_t loop = builder_->loop(length.least > count ? length.least - count : 0, most);
  const StateId again = builder_->state();
  const StateId another = builder_->state();
  const StateId done = builder_->state();
  builder_->go(at, again);
  builder_->count(again, loop, another);
  builder_->go(item(another, rest, length.least <= count, true), again);
  builder_->leave(again, loop, done);
  close_array(done, ends.second);
}

}  // namespace protean::grammar

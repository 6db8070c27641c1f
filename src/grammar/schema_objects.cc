#include <algorithm>
#include <map>

#include "grammar/code_points.h"
#include "grammar/schema_rules.h"

namespace protean::grammar {

namespace {

bool has_false(const Conjunction& schemas) {
  return std::any_of(schemas.begin(), schemas.end(),
                     [](const SchemaItem& item) { return item.place.is_false(); });
}

// Returns the names under `properties` in their order, then those that are only required.
std::vector<std::string> names_of(const Facets& facets) {
  std::vector<std::string> names;
  std::map<std::string_view, bool> seen;
  const auto add = [&](const std::string& name) {
    if (seen.try_emplace(name, true).second) {
      names.push_back(name);
    }
  };
  for (const PropertyKeywords& part : facets.properties) {
    for (const auto& [name, place] : part.named) {
      add(name);
    }
  }
  std::for_each(facets.required.begin(), facets.required.end(), add);
  return names;
}

}  // namespace

// Returns the languages that propertyNames asks for.
Result<std::vector<Language>> SchemaRules::allowed_names(const Facets& facets) const {
  std::vector<Language> allowed;
  for (const SchemaPlace& place : facets.property_names) {
    const Result<Conjunction> flat = flattened(*document_, {{place}});
    if (!flat) {
      return flat.error();
    }
    const Result<std::optional<Alternatives>> options = alternatives(*flat);
    if (!options) {
      return options.error();
    }
    if (options->has_value()) {
      return unsupported_keyword((*options)->place, (*options)->keyword);
    }
    const Result<Facets> names = facets_of(*flat);
    if (!names) {
      return names.error();
    }
    if ((names->types & kString) == 0) {
      allowed.emplace_back();
      continue;
    }
    Result<Language> language = string_language(*names);
    if (!language) {
      return language.error();
    }
    if (names->values) {
      std::vector<std::string> texts;
      for (const boost::json::value* value : *names->values) {
        if (value->is_string() && language->accepts(text_of(value->get_string()))) {
          texts.emplace_back(text_of(value->get_string()));
        }
      }
      language = Language::literals(texts);
    }
    allowed.push_back(std::move(*language));
  }
  return allowed;
}

Status SchemaRules::plan_named(const Facets& facets, const std::vector<Language>& allowed,
                               ObjectRules& plan) {
  for (const std::string& name : names_of(facets)) {
    Conjunction value;
    for (const PropertyKeywords& part : facets.properties) {
      const SchemaPlace* place = part.find(name);
      bool known = place != nullptr;
      if (known) {
        value.push_back({*place});
      }
      for (const auto& [keys, of_pattern] : part.patterns) {
        if (keys.accepts(name)) {
          value.push_back({of_pattern});
          known = true;
        }
      }
      if (!known && part.additional) {
        value.push_back({*part.additional});
      }
    }
    const bool required = facets.requires_property(name);
    const bool named_well = std::all_of(allowed.begin(), allowed.end(),
                                        [&](const Language& l) { return l.accepts(name); });
    if (has_false(value) || !named_well) {
      plan.possible &= !required;
    } else {
      plan.named.push_back({name, rule(value), required, value});
    }
  }
  return {};
}

// Plans the properties that no schema names, in classes by the patterns that their names match.
Status SchemaRules::plan_others(const Facets& facets, const std::vector<Language>& allowed,
                                ObjectRules& plan) {
  constexpr std::size_t kMostPatterns = 4;
  std::vector<const Language*> patterns;
  bool said = false;
  bool given = !facets.required.empty();
  for (const PropertyKeywords& part : facets.properties) {
    said |= part.additional.has_value();
    given |= !part.named.empty() || !part.patterns.empty();
    for (const auto& [keys, place] : part.patterns) {
      patterns.push_back(&keys);
    }
  }
  if (patterns.size() > kMostPatterns) {
    return make_error(ErrorCode::kUnsupported,
                      "schema at '{}/patternProperties': more than {} patterns for one object's "
                      "names are not supported",
                      facets.place.pointer, kMostPatterns);
  }
  const bool open = said || open_properties_ || !given;
  const std::vector<std::string> names = names_of(facets);
  for (std::uint32_t matched = 0; matched < (1U << patterns.size()); ++matched) {
    if (matched == 0 && !open) {
      continue;
    }
    Conjunction value;
    std::size_t next = 0;
    for (const PropertyKeywords& part : facets.properties) {
      bool known = false;
      for (const auto& [keys, place] : part.patterns) {
        if ((matched >> next++ & 1U) != 0) {
          value.push_back({place});
          known = true;
        }
      }
      if (!known && part.additional) {
        value.push_back({*part.additional});
      }
    }
    if (has_false(value)) {
      continue;
    }
    Result<Language> keys = Language::literals(names).complement();
    for (std::size_t i = 0; i < patterns.size() && keys; ++i) {
      const Result<Language> side =
          (matched >> i & 1U) != 0 ? Result<Language>(*patterns[i]) : patterns[i]->complement();
      keys = side ? keys->intersect(*side) : side;
    }
    for (std::size_t i = 0; i < allowed.size() && keys; ++i) {
      keys = keys->intersect(allowed[i]);
    }
    if (!keys) {
      return make_error(keys.error().code, "schema at '{}': {}", facets.place.pointer,
                        keys.error().message);
    }
    if (!keys->empty()) {
      plan.others.push_back({quoted(*keys), rule(value)});
    }
  }
  return {};
}

Result<SchemaRules::ObjectRules> SchemaRules::object_rules(const Facets& facets) {
  ObjectRules plan{.size = facets.object_size};
  const Result<std::vector<Language>> allowed = allowed_names(facets);
  if (!allowed) {
    return allowed.error();
  }
  Status status = plan_named(facets, *allowed, plan);
  if (status) {
    status = plan_others(facets, *allowed, plan);
  }
  if (!status) {
    return status.error();
  }
  const auto required = static_cast<std::uint32_t>(std::count_if(
      plan.named.begin(), plan.named.end(), [](const auto& p) { return p.required; }));
  plan.size.least = plan.size.least <= required ? 0 : plan.size.least;
  if (plan.others.empty() && plan.size.most >= plan.named.size()) {
    plan.size.most = kNoLimit;
  }
  // Other names may repeat, and a reader of the text keeps one member for each name, so only the
  // first of them counts for certain.
  if (plan.size.least > plan.named.size() + 1 && !plan.others.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      "schema at '{}/minProperties': more than one property beyond the named ones "
                      "cannot be asked for",
                      facets.place.pointer);
  }
  plan.possible &= plan.size.least <= plan.size.most && required <= plan.size.most;
  return plan;
}

// Returns a state to call for a quoted string of the language. It is called because its loops need
// a frame of their own.
StateId SchemaRules::quoted(const Language& language) {
  const StateId begin = builder_->state();
  const StateId inside = builder_->state();
  const StateId close = builder_->state();
  const StateId end = builder_->state();
  builder_->bytes(begin, '"', '"', inside);
  language.emit(*builder_, inside, Spelling::kJsonString, close);
  builder_->bytes(close, '"', '"', end);
  builder_->final(end);
  return begin;
}

Status SchemaRules::emit_object(const Facets& facets, StateId from, StateId to) {
  const Result<ObjectRules> plan = object_rules(facets);
  if (!plan) {
    return plan.error();
  }
  return plan->possible ? emit_members(*plan, from, to) : Status();
}

// Emits states (i, n): the next name is the i-th or a later one, and n properties are written. n
// stops growing where larger numbers make no difference.
Status SchemaRules::emit_members(const ObjectRules& plan, StateId from, StateId to) {
  constexpr std::size_t kMostStates = 100000;
  const std::size_t names = plan.named.size();
  const bool limited = plan.size.most != kNoLimit;
  const std::size_t top = std::max<std::size_t>(
      1, std::min<std::size_t>(names + 1, limited ? plan.size.most : plan.size.least));
  if ((names + 1) * (top + 1) > kMostStates) {
    return make_error(ErrorCode::kExhausted,
                      "a schema counts up to {} of {} properties; that is too many", top, names);
  }
  std::size_t last_required = 0;  // one past its index
  for (std::size_t i = 0; i < names; ++i) {
    last_required = plan.named[i].required ? i + 1 : last_required;
  }
  const StateId open = builder_->state();
  const StateId close = builder_->state();
  const StateId end = builder_->state();
  text_.gap(close, end);
  builder_->bytes(end, '}', '}', to);
  builder_->bytes(from, '{', '{', open);

  const auto at = [top](std::size_t i, std::size_t n) { return i * (top + 1) + n; };
  std::vector<StateId> after(at(names, top) + 1);   // the object may end or go on
  std::vector<StateId> before(at(names, top) + 1);  // a name must come
  std::generate(after.begin(), after.end(), [this] { return builder_->state(); });
  std::generate(before.begin(), before.end(), [this] { return builder_->state(); });
  text_.gap(open, after[at(0, 0)]);
  for (std::size_t i = 0; i <= names && !builder_->exhausted(); ++i) {
    for (std::size_t n = 0; n <= std::min(i, top); ++n) {
      const bool may_close = i >= last_required && n >= plan.size.least;
      if (may_close) {
        builder_->go(after[at(i, n)], n == 0 ? end : close);
      }
      if (limited && n >= plan.size.most) {
        continue;
      }
      const StateId more = builder_->state();
      may_close ? builder_->open(after[at(i, n)], more) : builder_->go(after[at(i, n)], more);
      n == 0 ? builder_->go(more, before[at(i, n)]) : text_.comma(more, before[at(i, n)]);
      if (i == names) {
        emit_others(plan, static_cast<std::uint32_t>(n), before[at(i, n)], close);
        continue;
      }
      const Property& property = plan.named[i];
      if (!property.required) {
        builder_->go(before[at(i, n)], before[at(i + 1, n)]);
      }
      const StateId key = builder_->state();
      const StateId value = builder_->state();
      builder_->literal(before[at(i, n)], json_quoted(property.name), key);
      text_.colon(key, value);
      builder_->call(value, property.value, after[at(i + 1, std::min(n + 1, top))]);
    }
  }
  return {};
}

void SchemaRules::emit_others(const ObjectRules& plan, std::uint32_t before, StateId from,
                              StateId close) {
  if (plan.others.empty() || before + 1 < plan.size.least) {
    return;
  }
  const StateId key = builder_->state();
  const StateId again = builder_->state();
  const StateId comma = builder_->state();
  builder_->go(from, key);
  for (const OtherProperties& other : plan.others) {
    const StateId named = builder_->state();
    const StateId value = builder_->state();
    builder_->call(key, other.name, named);
    text_.colon(named, value);
    builder_->call(value, other.value, again);
  }
  const std::uint32_t most = plan.size.most == kNoLimit ? kNoLimit : plan.size.most - before - 1;
  const std::uint32_t loop = builder_->loop(0, most);
  const StateId another = builder_->state();
  builder_->leave(again, loop, close);
  builder_->count(again, loop, another);
  builder_->open(another, comma);
  text_.comma(comma, key);
}

}  // namespace protean::grammar

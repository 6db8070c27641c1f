#include "grammar/schema_facets.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "grammar/json_formats.h"
#include "grammar/json_text.h"
#include "grammar/regex_parser.h"

namespace protean::grammar {

namespace {

using boost::json::value;

constexpr std::uint32_t kMostMultiple = 1000;

std::uint32_t type_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::uint32_t>, 7> kNames{{
      {"null", kNull},
      {"boolean", kBoolean},
      {"integer", kInteger},
      {"number", kInteger | kFraction},
      {"string", kString},
      {"array", kArray},
      {"object", kObject},
  }};
  const auto* it =
      std::find_if(kNames.begin(), kNames.end(), [&](const auto& n) { return n.first == name; });
  return it == kNames.end() ? 0 : it->second;
}

// Reads one keyword of one schema into the facets.
class KeywordReader {
 public:
  KeywordReader(Facets& facets, const SchemaPlace& place) : f_(&facets), place_(&place) {}

  Status read(std::string_view keyword, const value& of);

  PropertyKeywords properties;
  ItemKeywords items;
  std::uint32_t types = kAnyType;
  bool nullable = false;

 private:
  Error bad(std::string_view what) const { return malformed_keyword(*place_, keyword_, what); }
  Error refused(std::string_view why) const {
    return make_error(ErrorCode::kUnsupported, "schema at '{}/{}': {}", place_->pointer, keyword_,
                      why);
  }
  Status is_schema(const value& of) const {
    return of.is_object() || of.is_bool() ? Status() : bad("a schema is an object or a boolean");
  }

  Status read_type(const value& of);
  Status read_enum(const value& of);
  Status read_values(std::vector<const value*> values);
  Status read_bound(const value& of);
  Status read_multiple(const value& of);
  Status read_length(const value& of, LengthRange& range);
  Status read_pattern(const value& of);
  Status read_format(const value& of);
  Status read_items(const value& of);
  Status read_properties(const value& of);
  Status read_required(const value& of);
  Status read_string(const value& of);
  Status read_array(const value& of);
  Status read_object(const value& of);

  Facets* f_;
  const SchemaPlace* place_;
  std::string_view keyword_;
};

bool starts_any(std::string_view keyword, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), keyword) != names.end();
}

Status KeywordReader::read(std::string_view keyword, const value& of) {
  keyword_ = keyword;
  if (is_annotation(keyword) || is_applicator(keyword)) {
    return {};
  }
  if (keyword == "type") {
    return read_type(of);
  }
  if (keyword == "nullable") {
    nullable = of.is_bool() && of.get_bool();
    return of.is_bool() ? Status() : bad("it is not true or false");
  }
  if (keyword == "enum") {
    return read_enum(of);
  }
  if (keyword == "const") {
    return read_values({&of});
  }
  if (starts_any(keyword, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) {
    f_->implied_types |= kInteger | kFraction;
    return read_bound(of);
  }
  if (keyword == "multipleOf") {
    f_->implied_types |= kInteger | kFraction;
    return read_multiple(of);
  }
  if (starts_any(keyword, {"minLength", "maxLength", "pattern", "format"})) {
    return read_string(of);
  }
  if (starts_any(keyword, {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"})) {
    f_->implied_types |= kArray;
    return read_array(of);
  }
  if (starts_any(keyword, {"properties", "patternProperties", "additionalProperties", "required",
                           "propertyNames", "minProperties", "maxProperties"})) {
    f_->implied_types |= kObject;
    return read_object(of);
  }
  return unsupported_keyword(*place_, keyword);
}

Status KeywordReader::read_type(const value& of) {
  std::uint32_t named = 0;
  const auto add = [&](const value& name) {
    const std::uint32_t type = name.is_string() ? type_named(text_of(name.get_string())) : 0;
    named |= type;
    return type != 0;
  };
  const bool known =
      of.is_array() ? std::all_of(of.get_array().begin(), of.get_array().end(), add) : add(of);
  if (!known || named == 0) {
    return bad("a type is one or several of null, boolean, integer, number, string, array, object");
  }
  types = named;
  f_->types_stated = true;
  return {};
}

Status KeywordReader::read_enum(const value& of) {
  if (!of.is_array() || of.get_array().empty()) {
    return bad("it is not a list of at least one value");
  }
  std::vector<const value*> values;
  for (const value& one : of.get_array()) {
    values.push_back(&one);
  }
  return read_values(std::move(values));
}

Status KeywordReader::read_values(std::vector<const value*> values) {
  if (f_->values) {
    std::erase_if(values, [this](const value* mine) {
      return std::none_of(f_->values->begin(), f_->values->end(),
                          [mine](const value* other) { return equal_json(*mine, *other); });
    });
  }
  f_->values = std::move(values);
  return {};
}

Status KeywordReader::read_bound(const value& of) {
  if (!of.is_number()) {
    return bad("it is not a number (in this draft exclusive bounds are numbers, too)");
  }
  const DecimalBound bound{Decimal::of(of), !keyword_.starts_with("exclusive")};
  keyword_.ends_with("inimum") ? f_->numbers.at_least(bound) : f_->numbers.at_most(bound);
  f_->numbers_limited = true;
  return {};
}

Status KeywordReader::read_multiple(const value& of) {
  const Decimal step = of.is_number() ? Decimal::of(of) : Decimal{};
  if (step.is_zero() || step.negative) {
    return bad("it is not a number above zero");
  }
  f_->numbers_limited = true;
  if (step.whole == "0" && step.fraction.find_first_not_of('0') == step.fraction.size() - 1 &&
      step.fraction.back() == '1') {
    f_->numbers.fraction_digits =
        std::min(f_->numbers.fraction_digits, static_cast<std::uint32_t>(step.fraction.size()));
    return {};
  }
  const std::uint64_t whole = step.fraction.empty() && step.whole.size() <= 4
                                  ? std::stoull(step.whole)
                                  : std::uint64_t{kMostMultiple} + 1;
  const std::uint64_t both = std::lcm(whole, std::uint64_t{f_->numbers.multiple_of});
  if (both > kMostMultiple) {
    return refused("only whole numbers up to 1000 and 0.1, 0.01, ... are supported");
  }
  f_->numbers.multiple_of = static_cast<std::uint32_t>(both);
  f_->numbers.fraction_digits = 0;
  return {};
}

Status KeywordReader::read_length(const value& of, LengthRange& range) {
  const Decimal decimal = of.is_number() ? Decimal::of(of) : Decimal{true, "1", ""};
  if (decimal.negative || !decimal.fraction.empty()) {
    return bad("it is not a whole number of at least 0");
  }
  constexpr std::uint32_t kLarge = 1U << 30;  // longer than any answer
  const std::uint32_t length =
      decimal.whole.size() > 9 ? kLarge : static_cast<std::uint32_t>(std::stoul(decimal.whole));
  if (keyword_.starts_with("min")) {
    range.least = std::max(range.least, length);
  } else {
    range.most = std::min(range.most, length);
  }
  return {};
}

Status KeywordReader::read_string(const value& of) {
  if (keyword_ == "format") {
    return read_format(of);
  }
  f_->implied_types |= kString;
  return keyword_ == "pattern" ? read_pattern(of) : read_length(of, f_->string_length);
}

Status KeywordReader::read_pattern(const value& of) {
  if (!of.is_string()) {
    return bad("it is not a string");
  }
  Result<Language> language =
      parse_regex(text_of(of.get_string()), RegexDialect::kEcmaScript, RegexMatch::kSearch);
  if (!language) {
    return make_error(language.error().code, "schema at '{}/{}': {}", place_->pointer, keyword_,
                      language.error().message);
  }
  f_->string_languages.push_back(std::move(*language));
  return {};
}

Status KeywordReader::read_format(const value& of) {
  if (!of.is_string()) {
    return bad("it is not a string");
  }
  const std::string_view name = text_of(of.get_string());
  if (const std::optional<DecimalRange> range = number_format(name); range) {
    f_->implied_types |= kInteger | kFraction;
    if (range->least) {
      f_->numbers.at_least(*range->least);
      f_->numbers.at_most(*range->most);
      f_->numbers.fraction_digits = 0;
      f_->numbers_limited = true;
    }
    return {};
  }
  const std::optional<Language> language = string_format(name);
  if (!language) {
    return refused("the format '" + std::string(name) + "' is not supported; known are " +
                   known_formats());
  }
  f_->implied_types |= kString;
  f_->string_languages.push_back(*language);
  return {};
}

Status KeywordReader::read_array(const value& of) {
  if (keyword_ == "minItems" || keyword_ == "maxItems") {
    return read_length(of, f_->array_length);
  }
  if (keyword_ == "uniqueItems") {
    f_->unique_items |= of.is_bool() && of.get_bool();
    return of.is_bool() ? Status() : bad("it is not true or false");
  }
  return read_items(of);
}

Status KeywordReader::read_items(const value& of) {
  if (keyword_ == "items") {
    if (of.is_array()) {
      return bad("a list of schemas is called prefixItems in draft 2020-12");
    }
    items.rest = place_->child("items");
    return is_schema(of);
  }
  if (!of.is_array() || of.get_array().empty()) {
    return bad("it is not a list of at least one schema");
  }
  for (std::size_t i = 0; i < of.get_array().size(); ++i) {
    items.prefix.push_back(place_->child("prefixItems", i));
    if (Status status = is_schema(*items.prefix.back().schema); !status) {
      return status;
    }
  }
  return {};
}

Status KeywordReader::read_object(const value& of) {
  if (keyword_ == "minProperties" || keyword_ == "maxProperties") {
    return read_length(of, f_->object_size);
  }
  if (keyword_ == "required") {
    return read_required(of);
  }
  if (keyword_ == "additionalProperties") {
    properties.additional = place_->child(keyword_);
    return is_schema(of);
  }
  if (keyword_ == "propertyNames") {
    f_->property_names.push_back(place_->child(keyword_));
    return is_schema(of);
  }
  return read_properties(of);
}

Status KeywordReader::read_properties(const value& of) {
  if (!of.is_object()) {
    return bad("it is not an object of schemas");
  }
  for (const auto& member : of.get_object()) {
    const std::string name(member.key().data(), member.key().size());
    const SchemaPlace child = place_->child(keyword_, name);
    if (Status status = is_schema(member.value()); !status) {
      return make_error(status.error().code, "schema at '{}': a schema is an object or a boolean",
                        child.pointer);
    }
    if (keyword_ == "properties") {
      properties.named.emplace_back(name, child);
      continue;
    }
    Result<Language> keys = parse_regex(name, RegexDialect::kEcmaScript, RegexMatch::kSearch);
    if (!keys) {
      return make_error(keys.error().code, "schema at '{}': {}", child.pointer,
                        keys.error().message);
    }
    properties.patterns.emplace_back(std::move(*keys), child);
  }
  return {};
}

Status KeywordReader::read_required(const value& of) {
  if (!of.is_array()) {
    return bad("it is not a list of names");
  }
  for (const value& name : of.get_array()) {
    if (!name.is_string()) {
      return bad("it is not a list of names");
    }
    if (!f_->requires_property(text_of(name.get_string()))) {
      f_->required.emplace_back(text_of(name.get_string()));
    }
  }
  return {};
}

}  // namespace

const SchemaPlace* PropertyKeywords::find(std::string_view name) const {
  const auto it =
      std::find_if(named.begin(), named.end(), [name](const auto& n) { return n.first == name; });
  return it == named.end() ? nullptr : &it->second;
}

Status Facets::add(const SchemaPlace& schema) {
  if (place.schema == nullptr) {
    place = schema;
  }
  if (schema.schema->is_bool()) {
    types = schema.schema->get_bool() ? types : 0;
    return {};
  }
  if (schema.object() == nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "schema at '{}': a schema is an object or a boolean", schema.pointer);
  }
  KeywordReader reader(*this, schema);
  for (const auto& member : *schema.object()) {
    const std::string_view keyword(member.key().data(), member.key().size());
    if (keyword == "$id" && schema.pointer == "#") {
      continue;
    }
    if (Status status = reader.read(keyword, member.value()); !status) {
      return status;
    }
  }
  types &= reader.types | (reader.nullable ? std::uint32_t{kNull} : 0U);
  if (!reader.items.prefix.empty() || reader.items.rest) {
    items.push_back(std::move(reader.items));
  }
  if (!reader.properties.named.empty() || !reader.properties.patterns.empty() ||
      reader.properties.additional) {
    properties.push_back(std::move(reader.properties));
  }
  return {};
}

std::uint32_t Facets::written_types() const {
  return types_stated || implied_types == 0 ? types : types & implied_types;
}

bool Facets::requires_property(std::string_view name) const {
  return std::find(required.begin(), required.end(), name) != required.end();
}

bool is_annotation(std::string_view keyword) {
  return keyword.starts_with("x-") ||
         starts_any(keyword, {"title", "description", "default", "examples", "example", "$schema",
                              "$comment", "deprecated", "readOnly", "writeOnly", "$defs",
                              "definitions", "$anchor", "contentEncoding", "contentMediaType",
                              "discriminator", "externalDocs", "xml", "$vocabulary"});
}

bool is_applicator(std::string_view keyword) {
  return starts_any(keyword, {"$ref", "allOf", "anyOf", "oneOf"});
}

bool equal_json(const value& a, const value& b) {
  if (a.is_number() && b.is_number()) {
    return compare(Decimal::of(a), Decimal::of(b)) == 0;
  }
  if (a.kind() != b.kind()) {
    return false;
  }
  if (a.is_array()) {
    return std::equal(a.get_array().begin(), a.get_array().end(), b.get_array().begin(),
                      b.get_array().end(), equal_json);
  }
  if (a.is_object()) {
    return a.get_object().size() == b.get_object().size() &&
           std::all_of(a.get_object().begin(), a.get_object().end(), [&b](const auto& member) {
             const value* other = b.get_object().if_contains(member.key());
             return other != nullptr && equal_json(member.value(), *other);
           });
  }
  return a == b;
}

std::optional<bool> keeps_to(const value& v, const Facets& facets) {
  if (v.is_number()) {
    const bool whole = Decimal::of(v).fraction.empty();
    return (facets.types & static_cast<std::uint32_t>(whole ? kInteger : kFraction)) != 0 &&
           facets.numbers.contains(v);
  }
  if (v.is_null() || v.is_bool()) {
    return (facets.types & static_cast<std::uint32_t>(v.is_null() ? kNull : kBoolean)) != 0;
  }
  if (v.is_string()) {
    const std::string_view text = text_of(v.get_string());
    return (facets.types & kString) != 0 &&
           facets.string_length.contains(code_points(text).size()) &&
           std::all_of(facets.string_languages.begin(), facets.string_languages.end(),
                       [text](const Language& language) { return language.accepts(text); });
  }
  if ((facets.types & static_cast<std::uint32_t>(v.is_array() ? kArray : kObject)) == 0) {
    return false;
  }
  const bool free = v.is_array()
                        ? facets.items.empty() && facets.array_length.any() && !facets.unique_items
                        : facets.properties.empty() && facets.required.empty() &&
                              facets.object_size.any() && facets.property_names.empty();
  return free ? std::optional(true) : std::nullopt;
}

}  // namespace protean::grammar

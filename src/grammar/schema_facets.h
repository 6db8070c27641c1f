#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/json_decimal.h"
#include "grammar/language.h"
#include "grammar/schema_document.h"

namespace protean::grammar {

// What kinds of value; a number is an integer or one that is not.
enum JsonType : std::uint32_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAnyType = 127,
};

struct LengthRange {
  std::uint32_t least = 0;
  std::uint32_t most = kNoLimit;
  bool any() const { return least == 0 && most == kNoLimit; }
  bool contains(std::size_t length) const { return length >= least && length <= most; }
};

// What one schema says of an object's properties; "additional" means what this one does not name.
struct PropertiesPart {
  std::vector<std::pair<std::string, SchemaPlace>> named;
  std::vector<std::pair<Language, SchemaPlace>> patterns;
  std::optional<SchemaPlace> additional;

  const SchemaPlace* find(std::string_view name) const;
};
struct ItemsPart {
  std::vector<SchemaPlace> prefix;
  std::optional<SchemaPlace> rest;
};

// What several schemas say together of one value, anyOf and oneOf aside.
struct Facets {
  std::uint32_t types = kAnyType;
  std::uint32_t implied_types = 0;  // of keywords that speak of one type only
  bool types_stated = false;
  std::optional<std::vector<const boost::json::value*>> values;
  DecimalRange numbers;
  bool numbers_limited = false;
  LengthRange string_length;
  std::vector<Language> string_languages;  // all of them hold
  LengthRange array_length;
  std::vector<ItemsPart> items;
  bool unique_items = false;
  LengthRange object_size;
  std::vector<PropertiesPart> properties;
  std::vector<std::string> required;
  std::vector<SchemaPlace> property_names;
  SchemaPlace place;  // the first of the schemas, for errors

  // kUnsupported for a keyword that could not be kept, kInvalidArgument for one that is malformed.
  Status add(const SchemaPlace& schema);

  // The types to write. Where nothing is said, keywords of one type are taken to mean it.
  std::uint32_t written_types() const;
  bool requires_property(std::string_view name) const;
};

// Is it a keyword that limits nothing, or one that is dealt with before facets are read?
bool is_annotation(std::string_view keyword);
bool is_applicator(std::string_view keyword);

bool equal_json(const boost::json::value& a, const boost::json::value& b);

// Does the value keep to the facets? None: it is an array or object and we cannot say.
std::optional<bool> keeps_to(const boost::json::value& value, const Facets& facets);

}  // namespace protean::grammar

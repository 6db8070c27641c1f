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

// Kinds of values. A number is an integer or a fraction.
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

// What one schema says about an object's properties; `additional` is for those it does not name.
struct PropertyKeywords {
  std::vector<std::pair<std::string, SchemaPlace>> named;
  std::vector<std::pair<Language, SchemaPlace>> patterns;
  std::optional<SchemaPlace> additional;

  const SchemaPlace* find(std::string_view name) const;
};
struct ItemKeywords {
  std::vector<SchemaPlace> prefix;
  std::optional<SchemaPlace> rest;
};

// What the schemas of a conjunction say about one value, apart from anyOf and oneOf.
struct Facets {
  std::uint32_t types = kAnyType;
  std::uint32_t implied_types = 0;  // types that keywords such as minLength are about
  bool types_stated = false;
  std::optional<std::vector<const boost::json::value*>> values;
  DecimalRange numbers;
  bool numbers_limited = false;
  LengthRange string_length;
  std::vector<Language> string_languages;  // a string is in all of them
  LengthRange array_length;
  std::vector<ItemKeywords> items;
  bool unique_items = false;
  LengthRange object_size;
  std::vector<PropertyKeywords> properties;
  std::vector<std::string> required;
  std::vector<SchemaPlace> property_names;
  SchemaPlace place;  // the first of the schemas, for errors

  // Fails with kUnsupported if we do not enforce a keyword, kInvalidArgument if it is malformed.
  Status add(const SchemaPlace& schema);

  // Returns the types to write. If no type is stated, these are the types that keywords are about.
  std::uint32_t written_types() const;
  bool requires_property(std::string_view name) const;
};

// Return true for a keyword that limits nothing, and for one that conjunctions resolve.
bool is_annotation(std::string_view keyword);
bool is_applicator(std::string_view keyword);

bool equal_json(const boost::json::value& a, const boost::json::value& b);

// Returns true if the value satisfies the facets, or none for arrays and objects if the facets
// limit them.
std::optional<bool> keeps_to(const boost::json::value& value, const Facets& facets);

}  // namespace protean::grammar

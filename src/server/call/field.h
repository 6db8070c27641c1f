#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace protean {

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();  // integers

struct NumberRange {
  double low = 0.0;
  double high = 0.0;
  bool low_included = true;
};

// What a FieldReader accepts for a field. A value of kAny is read by code of its own.
enum class FieldKind : std::uint8_t { kBoolean, kInteger, kNumber, kString, kArray, kObject, kAny };

struct Field;
using Fields = std::span<const Field>;

// A field of a JSON object that clients send. The same tables of fields check bodies (FieldReader)
// and describe them (/openapi.json).
struct Field {
  std::string_view name;
  FieldKind kind = FieldKind::kAny;
  std::string_view about;         // one sentence for people who write a client
  std::int64_t least = 0;         // the least integer
  std::int64_t most = kNoLimit;   // the largest integer
  NumberRange range;              // bounds of a number
  std::string_view schema;        // JSON Schema in addition, such as {"maxItems":4}; all of kAny
  std::span<const Field> fields;  // fields of the object, or of each object of the array
  bool required = false;
};

constexpr Field boolean_field(std::string_view name, std::string_view about) {
  return {.name = name,
          .kind = FieldKind::kBoolean,
          .about = about,
          .range = {},
          .schema = {},
          .fields = {}};
}
constexpr Field integer_field(std::string_view name, std::int64_t least, std::int64_t most,
                              std::string_view about) {
  return {.name = name,
          .kind = FieldKind::kInteger,
          .about = about,
          .least = least,
          .most = most,
          .range = {},
          .schema = {},
          .fields = {}};
}
constexpr Field number_field(std::string_view name, NumberRange range, std::string_view about) {
  return {.name = name,
          .kind = FieldKind::kNumber,
          .about = about,
          .range = range,
          .schema = {},
          .fields = {}};
}
constexpr Field string_field(std::string_view name, std::string_view about,
                             std::string_view schema = {}) {
  return {.name = name,
          .kind = FieldKind::kString,
          .about = about,
          .range = {},
          .schema = schema,
          .fields = {}};
}
constexpr Field array_field(std::string_view name, std::string_view about,
                            std::string_view schema = {}, Fields fields = {}) {
  return {.name = name,
          .kind = FieldKind::kArray,
          .about = about,
          .range = {},
          .schema = schema,
          .fields = fields};
}
constexpr Field object_field(std::string_view name, std::string_view about, Fields fields = {},
                             std::string_view schema = {}) {
  return {.name = name,
          .kind = FieldKind::kObject,
          .about = about,
          .range = {},
          .schema = schema,
          .fields = fields};
}
// `schema` may be empty: a value of any type.
constexpr Field any_field(std::string_view name, std::string_view schema, std::string_view about) {
  return {.name = name,
          .kind = FieldKind::kAny,
          .about = about,
          .range = {},
          .schema = schema,
          .fields = {}};
}
constexpr Field required(Field field) {
  field.required = true;
  return field;
}

// Returns one table of several.
template <std::size_t... kSizes>
constexpr std::array<Field, (kSizes + ...)> joined(const std::array<Field, kSizes>&... tables) {
  std::array<Field, (kSizes + ...)> all{};
  auto at = all.begin();
  ((at = std::copy(tables.begin(), tables.end(), at)), ...);
  return all;
}

}  // namespace protean

#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace protean {

// A tool that a model may call.
struct OfferedTool {
  std::string name;
  boost::json::object parameters;  // JSON schema of its arguments; empty allows any
};

// The kinds of JSON value that a schema allows, as bits.
using ValueKinds = std::uint8_t;
inline constexpr ValueKinds kTextKind = 1;
inline constexpr ValueKinds kIntegerKind = 2;
inline constexpr ValueKinds kFractionKind = 4;
inline constexpr ValueKinds kBooleanKind = 8;
inline constexpr ValueKinds kNullKind = 16;
inline constexpr ValueKinds kArrayKind = 32;
inline constexpr ValueKinds kObjectKind = 64;
inline constexpr ValueKinds kAnyKind = 127;

// Returns the kinds that a schema allows for an argument. Reads type, enum, const, anyOf, oneOf,
// allOf and $ref within the schema, and allows all kinds where these say nothing. Never fails.
ValueKinds argument_kinds(const boost::json::object& parameters, std::string_view name);

// Returns the JSON of an argument that a model wrote without quotes: `text` as a JSON value if its
// kind is allowed, else as a string. Accepts Python's True, False and None.
std::string typed_argument(std::string_view text, ValueKinds kinds);

// Append or return text as it is written in a JSON string.
void append_escaped(char c, std::string& out);
std::string json_quoted(std::string_view text);

}  // namespace protean

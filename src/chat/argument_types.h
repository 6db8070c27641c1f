#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace protean {

// A tool that a model may call.
struct OfferedTool {
  std::string name;
  boost::json::object parameters;  // JSON schema of its arguments; empty: anything
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

// What the argument of this name may be, by type, enum, const, anyOf, oneOf, allOf and $ref within
// the schema. What does not show there may be anything: no schema is an error here.
ValueKinds argument_kinds(const boost::json::object& parameters, std::string_view name);

// The JSON value that is meant by an argument written without JSON's quotes: the value that the
// text is, if its kind is allowed, else the text. Takes Python's True, False and None.
std::string typed_argument(std::string_view text, ValueKinds kinds);

// As it stands within a JSON string.
void append_escaped(char c, std::string& out);
std::string json_quoted(std::string_view text);

}  // namespace protean

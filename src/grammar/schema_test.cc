#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

#include "grammar/grammar.h"

namespace protean {
namespace {

Result<std::shared_ptr<const Grammar>> try_compile(std::string_view schema, bool open = false) {
  boost::json::parse_options options;
  options.max_depth = 1000;
  return Grammar::compile({JsonSchema{
      .schema = boost::json::parse({schema.data(), schema.size()}, {}, options),
      .open_properties = open,
  }});
}

struct Case {
  const char* schema;
  std::vector<std::string> in;
  std::vector<std::string> out;
};

void expect_cases(const std::vector<Case>& cases, bool open = false) {
  for (const Case& c : cases) {
    const auto grammar = try_compile(c.schema, open);
    ASSERT_TRUE(grammar.ok()) << c.schema << ": " << grammar.error().message;
    for (const std::string& text : c.in) {
      EXPECT_TRUE((*grammar)->matches(text)) << c.schema << " on " << text;
    }
    for (const std::string& text : c.out) {
      EXPECT_FALSE((*grammar)->matches(text)) << c.schema << " on " << text;
    }
  }
}

TEST(JsonSchema, AnyValue) {
  expect_cases({
      {"true",
       {"null", "-0.5e+10", R"({"a":[1,{"b":"\u00e9\n\ud83d\ude00"}], "" : {}})", "[ ]", "[ 1 ]",
        "\"\xC3\xA9\""},
       {"", "01", "1.", "[1,]", "{\"a\"}", R"("\ud83d")", R"("\ude00")", "\"\n\"", R"("\x")",
        "\"\xC3\"", "nul", "1 ", " 1", "[\n1]", "1e999"}},
      {R"({"type":"object"})", {"{}", R"({"a":1})"}, {"[]", "1"}},
      {R"({"type":["boolean","null"]})", {"true", "null"}, {"0"}},
      {R"({"type":"integer"})", {"0", "-7", "1234567890"}, {"1.0", "1e3", "+1", "007"}},
  });
}

TEST(JsonSchema, Numbers) {
  expect_cases({
      {R"({"type":"integer","minimum":-5,"maximum":105})",
       {"-5", "-1", "0", "9", "99", "100", "105"},
       {"-6", "106", "1000", "-0", "-10", "1.0"}},
      {R"({"type":"integer","exclusiveMinimum":1.5,"exclusiveMaximum":4})", {"2", "3"}, {"1", "4"}},
      {R"({"type":"number","minimum":0.25,"exclusiveMaximum":1e1})",
       {"0.25", "0.250", "9.99999999999", "1"},
       {"0.2", "0.249", "10", "10.0", "-1", "0", "1e0"}},
      {R"({"type":"number","exclusiveMinimum":-1.5,"maximum":0})",
       {"-1.4999", "-1", "0", "0.0", "-0.1"},
       {"-1.5", "-1.50", "0.1", "-2"}},
      {R"({"type":"integer","multipleOf":7,"minimum":-20})",
       {"-14", "-7", "0", "7", "700"},
       {"-21", "8", "1"}},
      {R"({"type":"number","multipleOf":0.01})", {"1.25", "3", "-0.5"}, {"1.255"}},
      {R"({"type":"integer","format":"int32"})",
       {"2147483647", "-2147483648"},
       {"2147483648", "-2147483649"}},
      {R"({"type":"integer","minimum":1000000000000000000000})",
       {"1000000000000000000000"},
       {"999999999999999999999"}},
  });
}

TEST(JsonSchema, Strings) {
  expect_cases({
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("a\n\u00e9")", "\"\xF0\x9F\x98\x80\xF0\x9F\x98\x80\"", R"("\ud83d\ude00x")"},
       {R"("a")", R"("abcd")", R"("\ud83d\ude00")"}},
      {R"({"type":"string","pattern":"b+"})",
       {R"("b")", R"("abbba\u0041")", R"("\"b")"},
       {R"("a")", R"("")", "\"a\nb\""}},
      {R"({"type":"string","pattern":"^[\\s\"\\\\]+$"})",
       {R"("\n\t\"\\")", R"(" ")", R"("\u000b\u000B")"},
       {R"("\u0020")", R"("/")"}},
      {R"({"type":"string","pattern":"^a.*z$","maxLength":4})",
       {R"("abcz")", R"("az")"},
       {R"("abcdz")", R"("ab")", R"("a\nz")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2000-02-29")", R"("1999-12-31")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")", R"("2024-13-01")"}},
      {R"({"type":"string","format":"ipv6"})",
       {R"("::")", R"("::1")", R"("1:2:3:4:5:6:7:8")", R"("fe80::1:2")", R"("::ffff:1.2.3.4")",
        R"("1:2:3:4:5:6:7::")", R"("1::8")"},
       {R"("1:2:3")", R"("1::2::3")", R"("1:2:3:4:5:6:7:8:9")", R"("::1.2.3.256")"}},
  });
}

TEST(JsonSchema, Arrays) {
  expect_cases({
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1, 2,3]"},
       {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2})",
       {"[1,2]", "[1,2,3]"},
       {"[1]"}},
      {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"null"}],"items":false})",
       {"[]", R"(["a"])", R"(["a",null])"},
       {R"(["a",null,1])", "[null]"}},
      {R"({"prefixItems":[{"const":1}],"items":{"const":2},"minItems":3,"maxItems":4})",
       {"[1,2,2]", "[1,2,2,2]"},
       {"[1,2]", "[1,2,2,2,2]", "[2,2,2]"}},
      {R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type":"array","items":{"type":"array","items":{"type":"null"},"maxItems":2},
           "maxItems":2})",
       {"[[null,null],[null]]"},
       {"[[null,null,null]]", "[[],[],[]]"}},
  });
}

TEST(JsonSchema, Objects) {
  expect_cases({
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},
           "c":{"type":"null"}},"required":["b"]})",
       {R"({"a":1,"b":"x","c":null})", R"({"b":"x"})", R"({ "b" : "x" , "c" : null })"},
       {R"({})", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":"x",})", R"({"b":"x","d":1})",
        R"({,"b":"x"})"}},
      {R"({"properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"a":1})", R"({"a":1,"b":true,"ab":false})", R"({"\n":true})", R"({"":true})"},
       {R"({"b":1})", R"({"a":true})", R"({"b":true,"a":true})", R"({"\u0061":true})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":2})",
       {"{}", R"({"x":1,"y":2})"},
       {R"({"x":1,"y":2,"z":3})"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"minProperties":2,
           "maxProperties":2})",
       {R"({"a":1,"c":2})", R"({"b":1,"c":2})"},
       {R"({"a":1})", R"({"a":1,"b":1,"c":1})"}},
      {R"({"type":"object","properties":{"a":{"const":1}},"minProperties":1,
           "additionalProperties":{"const":2}})",
       {R"({"a":1})", R"({"z":2})", R"({"z":2,"y":2})"},
       {"{}", R"({"a":2})"}},
      {R"({"type":"object","patternProperties":{"^x":{"type":"integer"},"y$":{"minimum":5}},
           "additionalProperties":false})",
       {R"({"x1":-3,"xy":5})", R"({"ay":7})"},
       {R"({"xy":4})", R"({"b":1})", R"({"x":"s"})"}},
      {R"({"type":"object","properties":{"x1":{"maximum":3}},"required":["x1","q"],
           "patternProperties":{"^x":{"type":"integer"}}})",
       {R"({"x1":2,"q":[]})", R"({"x1":2,"q":null,"x2":7})"},
       {R"({"x1":4,"q":1})", R"({"x1":2})", R"({"x1":2,"q":1,"r":1})"}},
      {R"({"type":"object","propertyNames":{"pattern":"^[a-z]{2}$"}})",
       {R"({"ab":1})"},
       {R"({"abc":1})", R"({"A":1})"}},
      {R"({"type":"object","propertyNames":{"enum":["u","v"]}})", {R"({"v":1})"}, {R"({"w":1})"}},
  });
  expect_cases({{R"({"properties":{"a":{"type":"null"}}})",
                 {R"({"a":null,"b":1})", R"({"b":1})"},
                 {R"({"a":1})"}}},
               true);
}

TEST(JsonSchema, Combinations) {
  expect_cases({
      {R"({"enum":["a",1,null,{"k":[1,"x"]},1.5,"\"q\""]})",
       {R"("a")", "1", "null", R"({"k":[1,"x"]})", R"({ "k" : [ 1, "x" ] })", "1.5", R"("\"q\"")"},
       {R"("b")", "2", R"({"k":[1]})"}},
      {R"({"type":"string","enum":["a",1,"bcd"],"maxLength":2})", {R"("a")"}, {"1", R"("bcd")"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})",
       {"1", R"("a")"},
       {R"("ab")", "null"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
           "anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"},
       {"{}"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"minimum":1}},"required":["a"]},
           {"properties":{"a":{"type":"integer","maximum":3},"b":{"type":"null"}}}]})",
       {R"({"a":1})", R"({"a":3,"b":null})"},
       {R"({"a":0})", R"({"a":4})", R"({"b":null})", R"({"a":1.5})"}},
      {R"({"oneOf":[{"type":"object","properties":{"t":{"const":"x"},"v":{"type":"integer"}},
           "required":["t","v"]},{"type":"object","properties":{"t":{"const":"y"},
           "v":{"type":"string"}},"required":["t","v"]}]})",
       {R"({"t":"x","v":1})", R"({"t":"y","v":"1"})"},
       {R"({"t":"x","v":"1"})", R"({"t":"z","v":1})"}},
      {R"({"oneOf":[{"type":"integer","maximum":3},{"type":"integer","minimum":4}]})",
       {"3", "4"},
       {"1.5"}},
      {R"({"type":"string","nullable":true})", {"null", R"("a")"}, {"1"}},
  });
}

TEST(JsonSchema, Recursion) {
  expect_cases({
      {R"({"$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},
           "kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["v","kids"]}},
           "$ref":"#/$defs/tree"})",
       {R"({"v":1,"kids":[{"v":2,"kids":[]},{"v":3,"kids":[{"v":4,"kids":[]}]}]})"},
       {R"({"v":1,"kids":[{"v":2}]})"}},
      {R"({"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#"},"maxItems":1}]})",
       {"null", "[[[null]]]", "[]"},
       {"[null,null]"}},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", {"null"}, {"1"}},
      {R"({"$defs":{"a/b~c":{"$anchor":"x","type":"null"}},"type":"object",
           "properties":{"p":{"$ref":"#/$defs/a~1b~0c"},"q":{"$ref":"#x"}}})",
       {R"({"p":null,"q":null})"},
       {R"({"p":1})"}},
  });
}

std::shared_ptr<const Grammar> with_whitespace(JsonWhitespace whitespace) {
  const auto grammar = Grammar::compile({JsonSchema{
      .schema = true,
      .whitespace = std::move(whitespace),
  }});
  EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.error().message);
  return *grammar;
}

TEST(JsonSchema, WritesAtMostOneSpaceBetweenTokensByDefault) {
  const auto grammar = with_whitespace({});
  for (const char* text : {R"({"a":[1,{}],"b":2})", R"({"a": [1, {}], "b": 2})",
                           R"({ "a" : [ 1 , { } ] })", R"({"a": 1,"b": 2})"}) {
    EXPECT_TRUE(grammar->matches(text)) << text;
  }
  for (const char* text :
       {R"({  "a":1})", "[\n1]", "[1,\t2]", "[1,  2]", "[1\n]", R"({"a":  1})"}) {
    EXPECT_FALSE(grammar->matches(text)) << text;
  }
}

TEST(JsonSchema, WritesOneSpaceAfterSeparatorsOnly) {
  const auto grammar = with_whitespace(kSpacedSeparators);
  EXPECT_TRUE(grammar->matches(R"({"a": [1, {}], "b": 2})"));
  EXPECT_FALSE(grammar->matches(R"({"a":1})"));
  EXPECT_FALSE(grammar->matches(R"({"a": 1,"b": 2})"));
  EXPECT_FALSE(grammar->matches("[ 1]"));
}

TEST(JsonSchema, WritesTheWhitespaceOfAPattern) {
  const auto lines = with_whitespace({"", R"(\n(  ){0,3})"});
  EXPECT_TRUE(lines->matches("[\n  1\n,2\n]"));
  EXPECT_FALSE(lines->matches("[1]"));
  EXPECT_FALSE(lines->matches("[\n 1\n]"));
  // What is not white space of JSON is left out.
  const auto some = with_whitespace({R"(\s{0,2}|x)", R"(\s{0,2}|x)"});
  EXPECT_TRUE(some->matches("[ \t1\r\n]"));
  EXPECT_FALSE(some->matches("[\v1]"));
  EXPECT_FALSE(some->matches("[x1]"));
  for (const char* pattern : {"x", "[", "(?=a)"}) {
    const auto refused =
        Grammar::compile({JsonSchema{.schema = true, .whitespace = {pattern, pattern}}});
    ASSERT_FALSE(refused.ok()) << pattern;
    EXPECT_NE(refused.error().message.find("the white space pattern"), std::string::npos)
        << refused.error().message;
  }
}

void expect_error(std::string_view schema, ErrorCode code, std::string_view says) {
  const auto grammar = try_compile(schema);
  ASSERT_FALSE(grammar.ok()) << schema;
  EXPECT_EQ(grammar.error().code, code) << schema << ": " << grammar.error().message;
  EXPECT_NE(grammar.error().message.find(says), std::string::npos)
      << schema << ": " << grammar.error().message;
}

TEST(JsonSchema, RefusesByNameAndPlace) {
  for (const char* keyword : {"not", "if", "contains", "dependentRequired", "$dynamicRef",
                              "unevaluatedProperties", "uniqueItem"}) {
    const std::string schema =
        R"({"properties":{"a":{")" + std::string(keyword) + R"(":{"type":"null"}}}})";
    expect_error(schema, ErrorCode::kUnsupported, "#/properties/a/" + std::string(keyword));
  }
  expect_error(R"({"items":{"type":"array","uniqueItems":true}})", ErrorCode::kUnsupported,
               "uniqueItems");
  expect_error(R"({"type":"string","format":"iban"})", ErrorCode::kUnsupported, "iban");
  expect_error(R"j({"type":"string","pattern":"(?=a)"})j", ErrorCode::kUnsupported, "#/pattern");
  expect_error(R"({"type":"number","multipleOf":0.3})", ErrorCode::kUnsupported, "multipleOf");
  expect_error(R"({"oneOf":[{"type":"string"},{"type":"string","maxLength":3}]})",
               ErrorCode::kUnsupported, "#/oneOf");
  expect_error(R"({"oneOf":[{"properties":{"a":{}}},{"type":"string"}]})", ErrorCode::kUnsupported,
               "#/oneOf");
  expect_error(R"({"type":"object","minProperties":2})", ErrorCode::kUnsupported, "minProperties");
  expect_error(R"({"$ref":"http://x/y"})", ErrorCode::kUnsupported, "$ref");
}

TEST(JsonSchema, RefusesMalformedSchemas) {
  constexpr auto kBad = ErrorCode::kInvalidArgument;
  expect_error("1", kBad, "#");
  expect_error(R"({"type":"strng"})", kBad, "#/type");
  expect_error(R"({"properties":[]})", kBad, "#/properties");
  expect_error(R"({"properties":{"a":1}})", kBad, "#/properties/a");
  expect_error(R"({"required":"a"})", kBad, "#/required");
  expect_error(R"({"anyOf":[]})", kBad, "#/anyOf");
  expect_error(R"({"enum":[]})", kBad, "#/enum");
  expect_error(R"({"minimum":"1"})", kBad, "#/minimum");
  expect_error(R"({"minLength":-1})", kBad, "#/minLength");
  expect_error(R"({"items":[{}]})", kBad, "prefixItems");
  expect_error(R"({"$ref":"#/$defs/no"})", kBad, "#/$defs/no");
  expect_error(R"({"$ref":"#"})", kBad, "circle");
  expect_error(R"({"allOf":[{"$ref":"#"}]})", kBad, "circle");
  for (const char* never :
       {"false", R"({"type":"integer","minimum":3,"maximum":2})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"type":"array","items":{"$ref":"#"},"minItems":1})",
        R"({"allOf":[{"type":"string"},{"type":"null"}]})", R"({"enum":[1],"type":"string"})",
        R"({"type":"string","minLength":3,"maxLength":2})", R"({"anyOf":[{"$ref":"#"}]})",
        R"({"type":"string","pattern":"a$b"})", R"({"type":"array","minItems":3,"maxItems":1})"}) {
    expect_error(never, kBad, "never be satisfied");
  }
}

TEST(JsonSchema, HostileSchemasEndSoon) {
  // Each level doubles the combinations.
  std::string product = R"({"allOf":[)";
  for (int i = 0; i < 24; ++i) {
    product += std::string(i == 0 ? "" : ",") + R"({"anyOf":[{"minLength":)" + std::to_string(i) +
               R"(},{"maxLength":)" + std::to_string(100 - i) + "}]}";
  }
  expect_error(product + "]}", ErrorCode::kExhausted, "combinations");
  const std::string deep(900, '[');
  expect_error(R"({"const":)" + deep + std::string(900, ']') + "}", ErrorCode::kExhausted,
               "deeper");
  expect_error(R"j({"type":"string","pattern":"(a*){1000}b{1000}","maxLength":5000})j",
               ErrorCode::kExhausted, "#");
  expect_error(R"j({"patternProperties":{"^(a|b)*a(a|b){20}$":{}},"additionalProperties":true})j",
               ErrorCode::kExhausted, "#");
}

// Two alternatives that nest alike double the possible stacks with each level.
TEST(JsonSchema, AmbiguousNestingTakesLittleMemory) {
  const auto grammar = try_compile(
      R"({"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#"}},
                   {"type":"array","items":{"$ref":"#"},"maxItems":5}]})");
  ASSERT_TRUE(grammar.ok());
  const std::string deep = std::string(300, '[') + "null" + std::string(300, ']');
  EXPECT_TRUE((*grammar)->matches(deep));
}

}  // namespace
}  // namespace protean

#include "server/call/named_model.h"

#include <gtest/gtest.h>

#include <string>

namespace protean {
namespace {

std::string model_of(std::string_view body) {
  return text_field(body, "model").value_or("(none)");
}

TEST(TextField, IsFoundWhereverItIsAtTheTop) {
  EXPECT_EQ(model_of(R"({"model":"a"})"), "a");
  EXPECT_EQ(model_of(" {\r\n\t\"model\" : \"org/a:Q4\" , \"n\": 1}"), "org/a:Q4");
  EXPECT_EQ(model_of(R"({"prompt":[[1,2],[3]],"x":{"y":{}},"f":-1.5e3,"t":true,"model":"b"})"),
            "b");
  EXPECT_EQ(model_of(R"({"n":null,"model":""})"), "");
  EXPECT_EQ(text_field(R"({"model":1,"name":"c"})", "name"), "c");
}

TEST(TextField, InsideOfOtherValuesIsNotMeant) {
  EXPECT_EQ(model_of(R"({"messages":[{"model":"inner","content":"}]"}],"model":"outer"})"),
            "outer");
  EXPECT_EQ(model_of(R"({"prompt":"\"model\":\"x\", {[","model":"y"})"), "y");
  EXPECT_EQ(model_of(R"({"prompt":"ends with \\","model":"z"})"), "z");
  EXPECT_EQ(model_of(R"({"a":{"model":"x"}})"), "(none)");
  EXPECT_EQ(model_of(R"(["model","x"])"), "(none)");
}

TEST(TextField, EscapesAreDecoded) {
  EXPECT_EQ(model_of(R"({"mod\u0065l":"caf\u00e9 \"x\""})"), "café \"x\"");
  EXPECT_EQ(model_of(R"({"model":"\ud800"})"), "(none)") << "half a surrogate pair";
}

TEST(TextField, OtherKindsAndDamagedBodiesHaveNone) {
  for (const char* body : {"", " ", "{", "{}", "null", "{\"model\"", "{\"model\":", "{\"model\":7}",
                           "{\"model\":null}", "{\"model\":{\"a\":\"b\"}}", "{\"model\":\"open",
                           "{\"model\":\"open\\", "{\"a\":\"\\", "{model:\"a\"}", "{\"a\":[[[[",
                           "{\"a\" \"b\",\"model\":\"c\"}", "{,\"model\":\"a\"}"}) {
    EXPECT_EQ(model_of(body), "(none)") << body;
  }
}

}  // namespace
}  // namespace protean

// Tests answer formats in every dialect: a format that the vocabulary cannot express is refused,
// and the choices of one request have independent constraints.

#include "server/test_scenes/service_for_test.h"

namespace protean {
namespace {

// A tokenizer without tokens that hold a brace.
class BracelessTokenizer : public ByteTokenizer {
 public:
  std::string_view bytes(TokenId id) const override {
    return id == '{' || id == '}' ? std::string_view() : ByteTokenizer::bytes(id);
  }
};

struct FormatsTest : ServiceTest {
  Service::Answer ask_braceless(const std::string& path, const std::string& fields) {
    const bool texts = path == "/v1/completions";
    const bool items = path == "/v1/responses";
    const std::string input = texts   ? R"("prompt":"a")"
                              : items ? R"("input":"a")"
                                      : R"("messages":[{"role":"user","content":"a"}])";
    return braceless.handle(
        {.method = "POST", .target = path, .body = "{" + input + "," + fields + "}"});
  }
  std::string complaint(const std::string& path, const std::string& fields) {
    const Service::Answer answer = ask_braceless(path, fields);
    const HttpReply* reply = std::get_if<HttpReply>(&answer);
    if (reply == nullptr) {
      return "accepted";
    }
    EXPECT_EQ(reply->status, 400) << reply->body;
    const auto error = boost::json::parse(reply->body).at("error");
    return std::string(std::string_view(error.at("message").as_string()));
  }
  bool allows(const Request& request, std::string_view answer, TokenId token) {
    std::vector<TokenId> ids;
    for (const char c : answer) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    std::vector<std::uint64_t> mask(token_mask_words(tokenizer.vocab_size()));
    request.constraint->allowed_after(ids, mask);
    const auto at = static_cast<std::size_t>(token);
    return (mask[at / 64] >> (at % 64) & 1U) != 0;
  }

  BracelessTokenizer poor;
  ServedModel braceless_model() {
    ServedModel made = model();
    made.tokenizer = &poor;
    made.max_model_len = 1000;
    made.formats =
        std::make_shared<FormatCompiler>(poor, poor.vocab_size(), std::vector{ByteTokenizer::kEos});
    return made;
  }
  Service braceless{{.max_outstanding = 4}, braceless_model(), {}, environment(), inbox};
};

TEST_F(FormatsTest, FormatsTheVocabularyCannotWriteAreRefused) {
  braceless.set_state(ServerState::kReady);
  const std::string schema = R"({"type":"object"})";
  const std::string function = R"({"name":"f","parameters":{"type":"object"}})";
  const std::string tools = R"("tools":[{"type":"function","function":)" + function + "}],";
  struct Row {
    const char* path;
    std::string fields;
    const char* field;
  };
  const Row table[] = {
      {"/v1/completions", R"("guided_json":)" + schema, "guided_json"},
      {"/v1/completions", R"("structured_outputs":{"regex":"[{]x*"})", "structured_outputs.regex"},
      {"/v1/completions", R"("guided_choice":["{a","{b"])", "guided_choice"},
      {"/v1/chat/completions", R"("response_format":{"type":"json_object"})", "response_format"},
      {"/v1/chat/completions",
       R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + schema +
           "}}",
       "response_format"},
      {"/v1/chat/completions", tools + R"("tool_choice":"required")", "tools"},
      {"/v1/responses",
       R"("text":{"format":{"type":"json_schema","name":"n","schema":)" + schema + "}}",
       "text.format"},
      {"/v1/responses",
       R"("tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],)"
       R"("tool_choice":"required")",
       "tools"},
      {"/v1/messages",
       R"("max_tokens":9,"tools":[{"name":"f","input_schema":{"type":"object"}}],)"
       R"("tool_choice":{"type":"any"})",
       "tools"},
  };
  for (const Row& row : table) {
    const std::string said = complaint(row.path, row.fields);
    EXPECT_TRUE(said.starts_with(row.field)) << row.path << " " << row.fields << ": " << said;
    EXPECT_NE(said.find("no token of it holds \"{\""), std::string::npos) << said;
    EXPECT_NE(said.find("use another model"), std::string::npos) << said;
  }
  EXPECT_TRUE(arrivals().empty());
}

TEST_F(FormatsTest, FormatsArePrunedToWhatTheVocabularyCanWrite) {
  braceless.set_state(ServerState::kReady);
  EXPECT_EQ(complaint("/v1/completions", R"("guided_json":{"type":["integer","object"]})"),
            "accepted");
  const Request request = arrivals().at(0);
  EXPECT_TRUE(allows(request, "", '7'));
  EXPECT_FALSE(allows(request, "", '['));
  EXPECT_TRUE(allows(request, "7", ByteTokenizer::kEos));
}

TEST_F(FormatsTest, JsonIsCompactUnlessAPatternAsksForWhiteSpace) {
  generate("/v1/completions", R"({"prompt":"a","guided_json":{"type":"object"}})");
  const Request compact = arrivals().at(0);
  EXPECT_TRUE(allows(compact, "{", '"'));
  EXPECT_TRUE(allows(compact, "{", ' '));
  EXPECT_FALSE(allows(compact, "{ ", ' '));
  EXPECT_FALSE(allows(compact, "{", '\n'));
  EXPECT_FALSE(allows(compact, R"({"a":1,)", '\t'));
  generate("/v1/completions", R"({"prompt":"a","guided_json":{"type":"object"},
      "guided_whitespace_pattern":"(\n {2,4})?"})");
  const Request indented = arrivals().at(0);
  EXPECT_TRUE(allows(indented, "{", '\n'));
  EXPECT_FALSE(allows(indented, "{", ' '));
  EXPECT_FALSE(allows(indented, "{\n ", '"'));
  EXPECT_TRUE(allows(indented, "{\n  ", '"'));
}

TEST_F(FormatsTest, ANamedFunctionIsCalledOnceInEveryDialect) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  const std::string openai =
      R"("messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":
         {"name":"f","parameters":{"type":"object"}}}],"tool_choice":)";
  const std::string responses =
      R"("input":"a","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],)"
      R"("tool_choice":)";
  const std::string messages =
      R"("max_tokens":9,"messages":[{"role":"user","content":"a"}],)"
      R"("tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":)";
  struct Row {
    const char* path;
    std::string fields;
    bool once;
  };
  const Row table[] = {
      {"/v1/chat/completions", openai + R"({"type":"function","function":{"name":"f"}})", true},
      {"/v1/chat/completions", openai + R"("required")", false},
      {"/v1/responses", responses + R"({"type":"function","name":"f"})", true},
      {"/v1/responses", responses + R"("required")", false},
      {"/v1/messages", messages + R"({"type":"tool","name":"f"})", true},
      {"/v1/messages", messages + R"({"type":"any"})", false},
  };
  ServedModel roomy = model();
  roomy.max_model_len = 4000;
  Service other({.max_outstanding = 8}, roomy, {}, environment(), inbox);
  other.set_state(ServerState::kReady);
  for (const Row& row : table) {
    other.handle({.method = "POST", .target = row.path, .body = "{" + row.fields + "}"});
    const auto requests = arrivals();
    ASSERT_EQ(requests.size(), 1U) << row.path << row.fields;
    const Request& request = requests[0];
    EXPECT_TRUE(allows(request, call, ByteTokenizer::kEos)) << row.path << row.fields;
    EXPECT_EQ(allows(request, call, '\n'), !row.once) << row.path << row.fields;
  }
}

TEST_F(FormatsTest, OtherGrammarsThanThoseInUseGet503WhenMemoryIsShort) {
  FormatCompiler compiler(tokenizer, tokenizer.vocab_size(), {ByteTokenizer::kEos},
                          std::size_t{1} << 20);
  std::vector<std::shared_ptr<TokenConstraint>> in_use;
  std::optional<ApiError> refused;
  for (int n = 1; n < 200 && !refused; ++n) {
    const std::string pattern = "[a-z]{" + std::to_string(n * 10) + "}";
    auto made = compiler.constrain({{RegexPattern{pattern}}, pattern, "guided_regex"});
    if (const ApiError* error = std::get_if<ApiError>(&made)) {
      refused = *error;
    } else {
      in_use.push_back(std::get<std::shared_ptr<TokenConstraint>>(made));
    }
  }
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_TRUE(refused->message.starts_with("guided_regex: ")) << refused->message;
  EXPECT_NE(refused->message.find("--grammar-memory"), std::string::npos) << refused->message;
}

// Advances the choices in turns, as the steps of a batch do.
TEST_F(FormatsTest, EachChoiceKeepsItsOwnPlaceInASchema) {
  generate("/v1/completions", R"({"prompt":"a","n":3,"guided_json":{"type":"object",
      "properties":{"a":{"type":"integer"},"b":{"enum":["x","y"]}},"required":["a","b"]}})");
  const auto objects = arrivals();
  ASSERT_EQ(objects.size(), 3U);
  const std::string texts[] = {R"({"a":1,"b":"y"})", R"({"a":-27,"b":"x"})",
                               R"({ "a" :0, "b":"x"})"};
  for (std::size_t n = 0; n < 20; ++n) {
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string_view text = texts[i];
      const std::string_view before = text.substr(0, std::min(n, text.size()));
      const TokenId next = n < text.size() ? static_cast<TokenId>(text[n]) : ByteTokenizer::kEos;
      EXPECT_TRUE(allows(objects[i], before, next)) << before << " of choice " << i;
      EXPECT_FALSE(allows(objects[i], before, '!')) << before << " of choice " << i;
    }
  }
}

TEST_F(FormatsTest, EachChoiceKeepsItsOwnPlaceInAPattern) {
  generate("/v1/completions", R"({"prompt":"a","n":3,"guided_regex":"a+b|c{3}"})");
  const auto words = arrivals();
  ASSERT_EQ(words.size(), 3U);
  EXPECT_TRUE(allows(words[0], "aa", 'b'));
  EXPECT_TRUE(allows(words[1], "cc", 'c'));
  EXPECT_TRUE(allows(words[2], "", 'c'));
  EXPECT_FALSE(allows(words[1], "cc", ByteTokenizer::kEos));
  EXPECT_TRUE(allows(words[1], "ccc", ByteTokenizer::kEos));
  EXPECT_FALSE(allows(words[0], "aab", 'b'));
}

}  // namespace
}  // namespace protean

// Tests the refusal of texts that are too long, and of calls that need more memory than there is.

#include "server/answer/served_model.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <new>
#include <stdexcept>

#include "server/models.h"
#include "server/service.h"
#include "server/test_scenes/byte_tokenizer_for_test.h"

namespace protean {
namespace {

constexpr int kContext = 100;

// Counts calls of encode(). Can have a long token, run out of memory and throw.
class WatchedTokenizer : public ByteTokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    ++encoded;
    special_text.reset();
    if (options.special_in) {
      special_text.emplace();
      for (const TextRange& range : *options.special_in) {
        *special_text += text.substr(range.begin, range.end - range.begin);
      }
    }
    if (no_memory) {
      throw std::bad_alloc();
    }
    if (has_bug) {
      throw std::logic_error("a bug");
    }
    return ByteTokenizer::encode(text, options);
  }
  std::string_view bytes(TokenId id) const override {
    return id == 'w' ? std::string_view(word) : ByteTokenizer::bytes(id);
  }
  std::string_view token_text(TokenId id) const override {
    return id == kEos ? std::string_view(eos_name) : ByteTokenizer::bytes(id);
  }

  std::string word = "w";
  std::string eos_name;
  bool no_memory = false;
  bool has_bug = false;
  mutable int encoded = 0;
  mutable std::optional<std::string> special_text;  // in which special tokens were looked for
};

struct ServedModelTest : testing::Test {
  HttpReply post(const std::string& path, const std::string& body) {
    Service service({.max_outstanding = 4},
                    {.names = {"m"},
                     .tokenizer = &tokenizer,
                     .chat_template = &chat_template,
                     .max_model_len = kContext,
                     .special_tokens_in_content = special_tokens_in_content},
                    {},
                    {.clock = [] { return TimeNs{1}; },
                     .unix_time_s = [] { return std::int64_t{1}; },
                     .random = [] { return std::uint64_t{1}; }},
                    inbox);
    service.set_state(ServerState::kReady);
    Models models({&service}, {});
    const auto answer = models.handle({.method = "POST", .target = path, .body = body});
    const HttpReply* reply = std::get_if<HttpReply>(&answer);
    return reply == nullptr ? HttpReply{} : *reply;
  }
  static std::string text(std::size_t bytes) { return std::string(bytes, 'x'); }
  static std::string code_of(const HttpReply& reply) {
    return std::string(
        boost::json::parse(reply.body).at_pointer("/error/code").as_string().c_str());
  }

  bool special_tokens_in_content = false;
  WatchedTokenizer tokenizer;
  ChatTemplate chat_template = ChatTemplate::chatml();
  BoundedQueue<Event> inbox{64};
};

TEST_F(ServedModelTest, LimitOfTextFollowsTheLongestTokenEvenASpecialOne) {
  EXPECT_EQ(most_text_bytes(tokenizer, kContext), 4 * kContext);
  tokenizer.word = "wwwww";
  EXPECT_EQ(most_text_bytes(tokenizer, kContext), 5 * 4 * kContext);
  tokenizer.eos_name = "<|im_end|>";
  EXPECT_EQ(most_text_bytes(tokenizer, kContext), 10 * 4 * kContext);
  EXPECT_EQ(most_text_bytes(tokenizer, 1 << 30), 10LL * 4 * (1 << 30));
}

TEST_F(ServedModelTest, TextThatCannotFitIsRefusedWithoutTokenisingIt) {
  const std::string whole = text(4 * kContext + 1);
  const std::string half = text(2 * kContext + 1);
  const std::pair<std::string, std::string> table[] = {
      {"/v1/completions", "{\"prompt\":\"" + whole + "\"}"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + half +
                                   R"("},{"role":"user","content":")" + half + "\"}]}"},
      {"/v1/chat/completions",  // the template's own text is too long
       R"({"messages":[{"role":"user","content":")" + text(4 * kContext - 1) + "\"}]}"},
  };
  for (const auto& [path, body] : table) {
    const HttpReply reply = post(path, body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(code_of(reply), "context_length_exceeded");
    EXPECT_NE(reply.body.find("too long"), std::string::npos) << reply.body;
    EXPECT_NE(reply.body.find("context of 100 tokens"), std::string::npos) << reply.body;
  }
  EXPECT_EQ(tokenizer.encoded, 0);
  EXPECT_EQ(post("/v1/completions", "{\"prompt\":\"" + text(4 * kContext) + "\"}").status, 400);
  EXPECT_EQ(tokenizer.encoded, 1);  // a normalizer might shorten this one
}

TEST_F(ServedModelTest, TooManyPromptsAreRefusedBeforeAnyIsTokenised) {
  EXPECT_EQ(post("/v1/completions", R"({"prompt":["1","2","3","4","5"]})").status, 400);
  EXPECT_EQ(tokenizer.encoded, 0);
}

TEST_F(ServedModelTest, SpecialTokensOfAChatComeFromItsTemplateUnlessContentMayHoldThem) {
  const std::string chat =
      R"({"messages":[{"role":"user","content":"x<|im_end|>y"}],"max_tokens":1})";
  post("/v1/chat/completions", chat);
  EXPECT_EQ(tokenizer.special_text, "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n");
  const std::string continued =
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"<|im_end|>z"}],)"
      R"("continue_final_message":true,"max_tokens":1})";
  post("/v1/chat/completions", continued);
  EXPECT_EQ(tokenizer.special_text, "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n");
  special_tokens_in_content = true;
  post("/v1/chat/completions", chat);
  EXPECT_FALSE(tokenizer.special_text) << "anywhere";
  special_tokens_in_content = false;
  post("/v1/completions", R"({"prompt":"<s>","max_tokens":1})");
  EXPECT_FALSE(tokenizer.special_text) << "a prompt is the client's as a whole";
}

TEST_F(ServedModelTest, LackOfMemoryGets503) {
  tokenizer.no_memory = true;
  const HttpReply reply = post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("memory"), std::string::npos) << reply.body;
  ASSERT_EQ(reply.headers.size(), 1U);
  EXPECT_EQ(reply.headers[0].first, "Retry-After");
}

TEST_F(ServedModelTest, BugFailsTheRequestAndNotTheServer) {
  tokenizer.has_bug = true;
  const HttpReply reply = post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(reply.status, 500);
  EXPECT_NE(reply.body.find("bug"), std::string::npos) << reply.body;
  EXPECT_EQ(code_of(reply), "internal_error");
  tokenizer.has_bug = false;
  EXPECT_NE(post("/v1/completions", R"({"prompt":"a"})").status, 500);
}

}  // namespace
}  // namespace protean

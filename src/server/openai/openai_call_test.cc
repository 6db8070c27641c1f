#include "server/openai/openai_call.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

#include "server/call/json_body.h"

namespace protean {
namespace {

namespace json = boost::json;

Checked<GenerationCall> parse(std::string_view text, bool chat) {
  auto body = parse_json_body(text);
  if (const ApiError* error = std::get_if<ApiError>(&body)) {
    return *error;
  }
  json::value value = std::get<json::value>(std::move(body));
  return chat ? parse_chat_call(std::move(value)) : parse_completion_call(std::move(value));
}

// Returns a completion with a prompt and these fields.
std::string with(std::string_view fields) {
  return fmt::format(R"({{"prompt":"x",{}}})", fields);
}
std::string chat_with(std::string_view fields) {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}],{}}})", fields);
}

struct Bad {
  std::string body;
  std::string param;
  std::string says;
};

void expect_bad(const Bad& bad, bool chat) {
  const auto parsed = parse(bad.body, chat);
  const ApiError* error = std::get_if<ApiError>(&parsed);
  ASSERT_NE(error, nullptr) << bad.body.substr(0, 200);
  EXPECT_EQ(error->status, 400) << bad.body.substr(0, 200);
  EXPECT_EQ(error->param, bad.param) << bad.body.substr(0, 200);
  EXPECT_NE(error->message.find(bad.says), std::string::npos)
      << bad.body.substr(0, 200) << "\nsays: " << error->message;
}

std::string nested(int depth) {
  return with("\"x\":" + std::string(static_cast<std::size_t>(depth), '[') +
              std::string(static_cast<std::size_t>(depth), ']'));
}

TEST(JsonBody, RefusesMalformedJsonAndSaysWhere) {
  const Bad table[] = {
      {"", "", "line 1, column 1"},
      {"{", "", "incomplete"},
      {"{\"prompt\":\n  oops}", "", "line 2, column 3"},
      {"{\"prompt\":\"a\"} x", "", "extra data"},
      {"{\"prompt\":\"\xFF\"}", "", "line 1"},
      {"{\"prompt\":\"\\ud800\"}", "", "column 18"},
      {"{\"prompt\":\"a\",\"prompt\":\"b\"}", "", "\"prompt\" is given twice"},
      {R"({"prompt":"a","x":[{"deep":1,"deep":2}]})", "", "\"deep\" is given twice"},
      {with("\"temperature\":NaN"), "", "not valid JSON"},
      {with("\"temperature\":Infinity"), "", "not valid JSON"},
      {with("\"temperature\":1e400"), "", "larger than a double holds at line 1"},
      {with("\"any\":[-1e400]"), "", "larger than a double holds"},
      {"{'prompt':'a'}", "", "not valid JSON"},
      {"{\"prompt\":\"a\",}", "", "not valid JSON"},
      {nested(70), "", "too deep"},
      {std::string(1 << 20, '['), "", "too deep"},
      {"[1]", "", "must be a JSON object, not an array"},
      {"null", "", "must be a JSON object"},
  };
  for (const Bad& bad : table) {
    expect_bad(bad, false);
  }
  EXPECT_TRUE(std::holds_alternative<GenerationCall>(parse(nested(60), false)));
}

TEST(JsonBody, BoundsTheNumberOfValues) {
  std::string body = R"({"prompt":[0)";
  for (int i = 0; i < 4'100'000; ++i) {
    body += ",0";
  }
  expect_bad({body + "]}", "", "more than 4000000 values"}, false);
}

TEST(GenerationCall, RefusesBadFieldsByName) {
  const Bad table[] = {
      {"{}", "prompt", "prompt is required"},
      {R"({"prompt":null})", "prompt", "prompt is required"},
      {R"({"prompt":7})", "prompt", "prompt is required"},
      {R"({"prompt":[]})", "prompt", "prompt is required"},
      {R"({"prompt":[1,"a"]})", "prompt", "prompt[1] must be a token id, not a string"},
      {R"({"prompt":[-1]})", "prompt", "prompt[0] must be a token id, not -1"},
      {R"({"prompt":[1.5]})", "prompt", "prompt[0]"},
      {R"({"prompt":[99999999999]})", "prompt", "prompt[0]"},
      {R"({"prompt":[[1],[2,true]]})", "prompt", "prompt[1][1] must be a token id, not true"},
      {R"({"prompt":["a",{}]})", "prompt", "prompt[1]"},
      {with(R"("model":3)"), "model", "a string"},
      {with(R"("temperature":-0.1)"), "temperature", "at least 0"},
      {with(R"("temperature":1e300)"), "temperature", "at most 100"},
      {with(R"("temperature":"hot")"), "temperature", "not a string"},
      {with(R"("top_p":0)"), "top_p", "above 0"},
      {with(R"("top_p":1.01)"), "top_p", "at most 1"},
      {with(R"("min_p":-1)"), "min_p", "at least 0"},
      {with(R"("top_k":-2)"), "top_k", "at least -1"},
      {with(R"("top_k":1.5)"), "top_k", "an integer"},
      {with(R"("seed":"a")"), "seed", "an integer"},
      {with(R"("max_tokens":0)"), "max_tokens", "at least 1"},
      {with(R"("max_tokens":-5)"), "max_tokens", "at least 1"},
      {with(R"("max_tokens":true)"), "max_tokens", "not true"},
      {with(R"("max_tokens":1e99)"), "max_tokens", "an integer"},
      {with(R"("max_completion_tokens":0)"), "max_completion_tokens", "at least 1"},
      {with(R"("stop":5)"), "stop", "array of strings"},
      {with(R"("stop":[""])"), "stop", "not an empty string"},
      {with(R"("stop":["a",1])"), "stop", "non-empty strings"},
      {with(R"("stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])"),
       "stop", "17 strings, at most 16"},
      {with(R"("stop_token_ids":[1,-3])"), "stop_token_ids", "stop_token_ids[1]"},
      {with(R"("stop_token_ids":5)"), "stop_token_ids", "an array"},
      {with(R"("ignore_eos":1)"), "ignore_eos", "true or false"},
      {with(R"("stream":"yes")"), "stream", "true or false"},
      {with(R"("stream_options":{"include_usage":true})"), "stream_options", "stream is true"},
      {with(R"("stream":true,"stream_options":[])"), "stream_options", "an object"},
      {with(R"("stream":true,"stream_options":{"include_usage":1})"),
       "stream_options.include_usage", "true or false"},
      {with(R"("cache_salt":"")"), "cache_salt", "empty"},
      {with(R"("cache_salt":{})"), "cache_salt", "a string"},
      {with("\"cache_salt\":\"" + std::string(1025, 's') + "\""), "cache_salt", "1025 bytes"},
      {with("\"stop\":[\"a\",\"" + std::string(1025, 's') + "\"]"), "stop", "1025 bytes"},
      {with(R"("max_tokens":9223372036854775808)"), "max_tokens", "1 to 9223372036854775807"},
      {with(R"("max_tokens":1e16)"), "max_tokens", "1 to 9223372036854775807, in digits only"},
      {with(R"("top_k":99999999999999999999)"), "top_k", "-1 to 9223372036854775807"},
      {with(R"("seed":99999999999999999999)"), "seed", "to 18446744073709551615"},
      {with(R"("n":0)"), "n", "from 1 to 128, not 0"},
      {with(R"("n":"1")"), "n", "from 1 to 128, not a string"},
      {with(R"("n":129)"), "n", "from 1 to 128"},
      {with(R"("n":1.5)"), "n", "an integer"},
  };
  for (const Bad& bad : table) {
    expect_bad(bad, false);
  }
}

TEST(GenerationCall, RefusesUnsupportedFields) {
  const std::pair<const char*, const char*> fields[] = {
      {"use_beam_search", "true"},
      {"best_of", "2"},
      {"logits_processors", R"(["x"])"},
  };
  for (const auto& [name, value] : fields) {
    const std::string field = fmt::format(R"("{}":{})", name, value);
    expect_bad({with(field), name, name}, false);
    expect_bad({chat_with(field), name, name}, true);
  }
  expect_bad({R"({"prompt":[1],"suffix":"end"})", "prompt", "one text"}, false);
  expect_bad({with(R"("suffix":"end","echo":true)"), "echo", "suffix"}, false);
  expect_bad({chat_with(R"("echo":true)"), "echo", "repeating"}, true);
  expect_bad({chat_with(R"("functions":[{"name":"f"}])"), "functions", "older form"}, true);
  expect_bad({chat_with(R"("function_call":"auto")"), "function_call", "older form"}, true);
  expect_bad({chat_with(R"("chat_template":"{{x}}")"), "chat_template", "per request"}, true);
  expect_bad({chat_with(R"("documents":[{"text":"a"}])"), "documents", "documents"}, true);
  for (const char* modalities : {R"(["audio"])", R"(["text","audio"])", "[]", "[7]", "\"text\""}) {
    expect_bad(
        {chat_with(fmt::format("\"modalities\":{}", modalities)), "modalities", "modalities"},
        true);
  }
}

TEST(GenerationCall, NeutralValuesAndUnknownFieldsPass) {
  const char* neutral = R"("n":1,"presence_penalty":0,"frequency_penalty":0.0,
      "repetition_penalty":1.0,"logit_bias":{},"logprobs":null,"top_logprobs":0,"prompt_logprobs":null,"best_of":1,
      "response_format":{"type":"text"},"echo":false,"suffix":"","min_tokens":0,"user":"me",
      "skip_special_tokens":true,"parallel_tool_calls":true,"metadata":{"a":[1]},"priority":0,
      "structured_outputs":{},"return_token_ids":false,"bad_words":[],"grammar":"")";
  EXPECT_TRUE(std::holds_alternative<GenerationCall>(parse(with(neutral), false)));
  const std::string chat =
      std::string(neutral) +
      R"(,"tools":[],"tool_choice":"none","store":false,"modalities":["text"])";
  EXPECT_TRUE(std::holds_alternative<GenerationCall>(parse(chat_with(chat), true)));
  EXPECT_TRUE(
      std::holds_alternative<GenerationCall>(parse(chat_with(R"("logprobs":false)"), true)));
}

TEST(GenerationCall, RefusesBadMessages) {
  const auto messages = [](std::string_view list) {
    return fmt::format(R"({{"messages":{}}})", list);
  };
  const Bad table[] = {
      {"{}", "messages", "messages is required"},
      {messages("[]"), "messages", "at least one"},
      {messages(R"("hi")"), "messages", "an array"},
      {messages("[3]"), "messages", "messages[0] must be an object"},
      {messages(R"([{"content":"x"}])"), "messages", "with a role"},
      {messages(R"([{"role":"robot","content":"x"}])"), "messages", "not \"robot\""},
      {messages(R"([{"role":"user"}])"), "messages", "messages[0].content is missing"},
      {messages(R"([{"role":"user","content":5}])"), "messages", "messages[0].content must be"},
      {messages(R"([{"role":"user","content":["a"]}])"), "messages",
       "content[0] must be an object"},
      {messages(R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"text",
          "text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}])"),
       "messages", "messages[1].content[1] is of type \"image_url\""},
      {chat_with(R"("add_generation_prompt":"no")"), "add_generation_prompt", "true or false"},
      {chat_with(R"("chat_template_kwargs":[])"), "chat_template_kwargs", "an object"},
  };
  for (const Bad& bad : table) {
    expect_bad(bad, true);
  }
}

TEST(GenerationCall, ReadsEveryField) {
  const auto parsed = parse(R"({"model":"m","prompt":["a",[1,2]],"temperature":0.5,"top_k":-1,
      "top_p":0.9,"min_p":0.1,"seed":18446744073709551615,"stop":"S","stop_token_ids":[7],
      "ignore_eos":true,"include_stop_str_in_output":true,"stream":true,
      "stream_options":{"include_usage":true,"continuous_usage_stats":true},"max_tokens":5,
      "max_completion_tokens":6.0,"add_special_tokens":false,"cache_salt":"z"})",
                            false);
  const GenerationCall* call = std::get_if<GenerationCall>(&parsed);
  ASSERT_NE(call, nullptr) << std::get<ApiError>(parsed).message;
  const auto& prompts = std::get<CompletionInput>(call->input).prompts;
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(std::get<std::string>(prompts[0]), "a");
  EXPECT_EQ(std::get<std::vector<TokenId>>(prompts[1]), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(call->model, "m");
  EXPECT_EQ(call->sampling.temperature, 0.5F);
  EXPECT_EQ(call->sampling.top_k, 0);
  EXPECT_EQ(call->sampling.top_p, 0.9F);
  EXPECT_EQ(call->sampling.min_p, 0.1F);
  EXPECT_EQ(call->sampling.seed, 18446744073709551615U);
  EXPECT_EQ(call->stop.strings, std::vector<std::string>{"S"});
  EXPECT_EQ(call->stop.token_ids, std::vector<TokenId>{7});
  EXPECT_TRUE(call->stop.ignore_eos && call->stop.keep_string);
  EXPECT_TRUE(call->stream.enabled && call->stream.usage && call->stream.continuous_usage);
  EXPECT_EQ(call->max_tokens, 6);
  EXPECT_EQ(call->prompt.add_special_tokens, false);
  EXPECT_EQ(call->cache_salt, "z");
}

TEST(GenerationCall, JoinsTextPartsAndKeepsTheRestOfAMessage) {
  const auto parsed = parse(R"({"messages":[{"role":"user","name":"n","content":[
      {"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","tool_calls":[]}],"chat_template_kwargs":{"enable_thinking":false},
      "reasoning_effort":"low","add_generation_prompt":false})",
                            true);
  const GenerationCall* call = std::get_if<GenerationCall>(&parsed);
  ASSERT_NE(call, nullptr) << std::get<ApiError>(parsed).message;
  const ChatInput& chat = std::get<ChatInput>(call->input);
  ASSERT_EQ(chat.messages.size(), 2U);
  EXPECT_EQ(chat.messages[0].at("content"), "a\nb");
  EXPECT_EQ(chat.messages[0].at("name"), "n");
  EXPECT_TRUE(chat.messages[1].at("content").is_null());
  EXPECT_FALSE(chat.add_generation_prompt);
  EXPECT_EQ(chat.template_kwargs.at("enable_thinking"), false);
  EXPECT_EQ(chat.template_kwargs.at("reasoning_effort"), "low");
}

}  // namespace
}  // namespace protean

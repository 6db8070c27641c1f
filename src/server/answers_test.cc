// Tests what answers hold of choices, tokens and prompts, streamed and not.

#include <cmath>

#include "server/test_scenes/service_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

struct AnswersTest : ServiceTest {
  static TokenLogprobs likely(TokenId first, TokenId second) {
    return {.logprob = -0.5F, .rank = 1, .top = {{first, -0.5F}, {second, -1.5F}}};
  }
};

TEST_F(AnswersTest, ChoicesShareAPromptAndHaveSeedsInOrder) {
  const auto generation =
      generate("/v1/completions", R"({"prompt":["a","b"],"n":2,"seed":7,"max_tokens":1})");
  const auto requests = arrivals();
  ASSERT_EQ(requests.size(), 4U);
  EXPECT_EQ(requests[0].prompt, requests[1].prompt);
  EXPECT_NE(requests[1].prompt, requests[2].prompt);
  const std::uint64_t seeds[] = {7, 8, 7, 8};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(requests[i].sampling.seed, seeds[i]);
    deliver({Accepted{requests[i].id}, NewToken{requests[i].id, static_cast<TokenId>('A' + i)},
             finished(requests[i].id, FinishReason::kLength, 1)});
  }
  const json::value body = json::parse(generation->take_body());
  EXPECT_EQ(body.at_pointer("/choices/3/text"), "D");
  EXPECT_EQ(body.at_pointer("/usage/prompt_tokens"), 4) << "each prompt counts once";
  EXPECT_EQ(body.at_pointer("/usage/completion_tokens"), 4);
  EXPECT_EQ(refused("/v1/completions", R"({"prompt":"a","n":5})").status, 400);
}

TEST_F(AnswersTest, UnseededChoicesDiffer) {
  generate("/v1/completions", R"({"prompt":"a","n":3})");
  const auto requests = arrivals();
  EXPECT_NE(requests[0].sampling.seed, requests[1].sampling.seed);
  EXPECT_NE(requests[1].sampling.seed, requests[2].sampling.seed);
}

TEST_F(AnswersTest, FieldsReachTheEngine) {
  generate("/v1/completions", R"({"prompt":"ab","logit_bias":{"5":-100,"6":2.5},"priority":-3,
      "allowed_token_ids":[9,7,9],"bad_words":["xy"],"min_tokens":2,"presence_penalty":1,
      "frequency_penalty":0.5,"repetition_penalty":1.25,"logprobs":3,"timeout":2,
      "truncate_prompt_tokens":1})");
  const Request request = arrivals().at(0);
  EXPECT_EQ(request.prompt, std::vector<TokenId>{'b'});
  ASSERT_NE(request.rules, nullptr);
  EXPECT_EQ(request.rules->bias.at(1).token, 6);
  EXPECT_EQ(request.rules->bias.at(1).bias, 2.5F);
  EXPECT_EQ(request.rules->allowed, (std::vector<TokenId>{7, 9}));
  EXPECT_EQ(request.rules->bad_words,
            (std::vector<std::vector<TokenId>>{{'x', 'y'}, {' ', 'x', 'y'}}));
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_EQ(request.sampling.presence_penalty, 1.0F);
  EXPECT_EQ(request.sampling.frequency_penalty, 0.5F);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.25F);
  EXPECT_TRUE(request.logprobs.answer && !request.logprobs.prompt);
  EXPECT_EQ(request.logprobs.top, 3);
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.deadlines.finish_ns, now_ns + 2000 * kNsPerMs);
  for (const char* bad : {R"("logit_bias":{"258":1})", R"("allowed_token_ids":[258])"}) {
    const auto reply = refused("/v1/completions", R"({"prompt":"a",)" + std::string(bad) + "}");
    EXPECT_NE(reply.body.find("the token id 258"), std::string::npos) << reply.body;
  }
}

TEST_F(AnswersTest, HeadersSetDeadlines) {
  HttpCall call{.method = "POST", .target = "/v1/completions", .body = R"({"prompt":"a"})"};
  call.headers = {{"x-slo-ttft-ms", "250"}, {"x-request-timeout-ms", "1000"}};
  const auto generation = std::get<std::shared_ptr<GrowingAnswer>>(service.handle(call));
  const Request request = arrivals().at(0);
  EXPECT_EQ(request.deadlines.first_token_ns, now_ns + 250 * kNsPerMs);
  EXPECT_EQ(request.deadlines.finish_ns, now_ns + 1000 * kNsPerMs);
  deliver({Refused{request.id, make_error(ErrorCode::kExhausted, "hopeless")}});
  const HttpReply reply = error_reply(*generation->failure());
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(error_of(reply).at("code"), "slo_unattainable");
  for (const char* bad : {"-1", "0", "1.5", "x", "99999999999"}) {
    call.headers = {{"x-slo-ttft-ms", bad}};
    const auto answer = service.handle(call);
    const HttpReply* refusal = std::get_if<HttpReply>(&answer);
    ASSERT_NE(refusal, nullptr) << bad;
    EXPECT_EQ(error_of(*refusal).at("param"), "x-slo-ttft-ms");
  }
  call.headers = {{"x-request-timeout-ms", "5000"}, {"x-request-timeout-ms", "1"}};
  const auto twice = service.handle(call);
  ASSERT_TRUE(std::holds_alternative<HttpReply>(twice));
  EXPECT_EQ(error_of(std::get<HttpReply>(twice)).at("param"), "x-request-timeout-ms");
}

// The engine accepts a request and later finds that its deadline cannot be met.
TEST_F(AnswersTest, DeadlineMissedInTheQueueIsTheFirstTokens) {
  for (const char* timeout : {"1000", "100"}) {
    HttpCall call{.method = "POST", .target = "/v1/completions", .body = R"({"prompt":"a"})"};
    call.headers = {{"x-slo-ttft-ms", "250"}, {"x-request-timeout-ms", timeout}};
    const auto generation = std::get<std::shared_ptr<GrowingAnswer>>(service.handle(call));
    const RequestId id = arrivals().at(0).id;
    deliver({Accepted{id}, finished(id, FinishReason::kTimeout, 0)});
    const HttpReply reply = error_reply(*generation->failure());
    EXPECT_EQ(error_of(reply).at("code"),
              std::string_view(timeout) == "1000" ? "slo_unattainable" : "timeout");
  }
}

// The engine accepts the choices one by one.
TEST_F(AnswersTest, RolesComeBeforeTextOfEarlyChoices) {
  const auto generation = generate(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"x"}],"n":2,"stream":true,"max_tokens":1})");
  const std::vector<Request> requests = arrivals();
  const RequestId first = requests.at(0).id;
  const RequestId second = requests.at(1).id;
  deliver({Accepted{first}, NewToken{first, 'a'}, finished(first, FinishReason::kLength, 1)});
  EXPECT_FALSE(generation->started());
  deliver({Accepted{second}, NewToken{second, 'b'}, finished(second, FinishReason::kLength, 1)});
  const auto events = events_of(generation->take_events());
  for (int i = 0; i < 2; ++i) {
    const json::value& choice = events.at(static_cast<std::size_t>(i)).at_pointer("/choices/0");
    EXPECT_EQ(choice.at("index"), i);
    EXPECT_EQ(choice.at_pointer("/delta/role"), "assistant");
  }
  EXPECT_EQ(events.at(2).at_pointer("/choices/0/delta/content"), "a");
}

TEST_F(AnswersTest, AnswersFailAtTheirTimeLimit) {
  for (const bool stream : {false, true}) {
    const auto generation = generate(
        "/v1/completions", fmt::format(R"({{"prompt":"a","timeout":1,"stream":{}}})", stream));
    const RequestId id = arrivals().at(0).id;
    deliver({Accepted{id}, NewToken{id, 'x'}, finished(id, FinishReason::kTimeout, 1)});
    ASSERT_TRUE(generation->failure());
    EXPECT_EQ(generation->failure()->status, 504);
    EXPECT_EQ(error_of(error_reply(*generation->failure())).at("code"), "timeout");
    if (stream) {
      EXPECT_EQ(events_of(generation->take_events()).back().at_pointer("/error/code"), "timeout");
    }
  }
}

TEST_F(AnswersTest, EchoAndLogprobsOfACompletion) {
  const char* call = R"({"prompt":"ab","echo":true,"logprobs":1,"max_tokens":1,"stream":%s})";
  for (const bool stream : {false, true}) {
    std::string body = call;
    body.replace(body.find("%s"), 2, stream ? "true" : "false");
    const auto generation = generate("/v1/completions", body);
    const Request request = arrivals().at(0);
    EXPECT_TRUE(request.logprobs.prompt && request.logprobs.answer);
    const RequestId id = request.id;
    deliver(
        {Accepted{id},
         PromptScored{
             id, 1, {likely('a', 'z'), {.logprob = -INFINITY, .rank = 9, .top = {{'q', -0.1F}}}}}});
    deliver({NewToken{id, 'c', likely('c', 'd')}, finished(id, FinishReason::kLength, 1)});
    json::value logprobs;
    if (stream) {
      const auto events = events_of(generation->take_events());
      EXPECT_EQ(text_of(events), "abc");
      logprobs = events.at(0).at_pointer("/choices/0/logprobs");
      EXPECT_EQ(events.at(1).at_pointer("/choices/0/logprobs/text_offset/0"), 2);
    } else {
      const json::value answer = json::parse(generation->take_body());
      EXPECT_EQ(answer.at_pointer("/choices/0/text"), "abc");
      logprobs = answer.at_pointer("/choices/0/logprobs");
      EXPECT_EQ(logprobs.at_pointer("/text_offset/3"), 2);
      EXPECT_EQ(logprobs.at_pointer("/token_logprobs/3"), -0.5);
      EXPECT_EQ(answer.at_pointer("/usage/completion_tokens"), 1);
    }
    EXPECT_EQ(logprobs.at("tokens").as_array().size(), stream ? 3U : 4U);
    EXPECT_TRUE(logprobs.at_pointer("/token_logprobs/0").is_null()) << "nothing is before BOS";
    EXPECT_TRUE(logprobs.at_pointer("/top_logprobs/0").is_null());
    EXPECT_EQ(logprobs.at_pointer("/token_logprobs/2").to_number<double>(), -9999.0)
        << "JSON has no infinity";
    EXPECT_EQ(logprobs.at_pointer("/top_logprobs/2").as_object().size(), 2U);
    EXPECT_EQ(logprobs.at_pointer("/text_offset/2"), 1);
  }
}

TEST_F(AnswersTest, ChoicesOfAPromptAreToldTheLikelihoodsThatTheFirstComputes) {
  for (const bool stream : {false, true}) {
    const auto generation = generate(
        "/v1/completions",
        fmt::format(R"({{"prompt":"ab","echo":true,"logprobs":0,"n":2,"stream":{}}})", stream));
    const auto requests = arrivals();
    ASSERT_EQ(requests.size(), 2U);
    EXPECT_TRUE(requests[0].logprobs.prompt);
    EXPECT_FALSE(requests[1].logprobs.prompt);
    EXPECT_EQ(requests[0].call, requests[0].id);
    EXPECT_EQ(requests[1].call, requests[0].id) << "the choices of one call are one client's";
    const RequestId first = requests[0].id;
    const RequestId second = requests[1].id;
    const TokenLogprobs told{.logprob = -0.5F, .rank = 1};
    deliver({Accepted{first}, Accepted{second}});
    deliver({PromptScored{first, 1, {told}}, NewToken{second, 'x', told},
             finished(second, FinishReason::kLength, 1)});
    EXPECT_FALSE(generation->done());
    EXPECT_EQ(generation->take_events(), "") << "half of the prompt is not scored yet";
    deliver({PromptScored{first, 2, {told}}, NewToken{first, 'y', told},
             finished(first, FinishReason::kLength, 1)});
    ASSERT_TRUE(generation->done());
    if (stream) {
      int prompts = 0;
      for (const json::value& event : events_of(generation->take_events())) {
        const json::value* text =
            event.is_object() ? event.as_object().if_contains("choices") : nullptr;
        prompts += text != nullptr && text->at(0).at("text") == "ab" ? 1 : 0;
      }
      EXPECT_EQ(prompts, 2);
      continue;
    }
    const json::value body = json::parse(generation->take_body());
    for (const int choice : {0, 1}) {
      const json::value& shown = body.at("choices").at(static_cast<std::size_t>(choice));
      EXPECT_EQ(shown.at("text"), choice == 0 ? "aby" : "abx");
      EXPECT_EQ(shown.at_pointer("/logprobs/token_logprobs"),
                (json::array{nullptr, -0.5, -0.5, -0.5}));
    }
    EXPECT_EQ(body.at_pointer("/usage/prompt_tokens"), 3);
    EXPECT_EQ(body.at_pointer("/usage/completion_tokens"), 2);
  }
}

TEST_F(AnswersTest, PromptAloneIsAnAnswer) {
  const auto generation =
      generate("/v1/completions", R"({"prompt":[97,98],"echo":true,"max_tokens":0})");
  const Request request = arrivals().at(0);
  EXPECT_EQ(request.max_tokens, 0);
  deliver({Accepted{request.id}, finished(request.id, FinishReason::kLength, 0)});
  const json::value body = json::parse(generation->take_body());
  EXPECT_EQ(body.at_pointer("/choices/0/text"), "ab");
  EXPECT_TRUE(body.at_pointer("/choices/0/logprobs").is_null());
}

TEST_F(AnswersTest, LogprobsOfAChat) {
  const auto generation =
      generate("/v1/chat/completions",
               R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":1,
          "return_token_ids":true,"prompt_logprobs":2})");
  const Request request = arrivals().at(0);
  EXPECT_EQ(request.logprobs.top, 2) << "the larger of both";
  const RequestId id = request.id;
  deliver({Accepted{id}, PromptScored{id, 1, {likely('|', 'b')}},
           NewToken{id, 0xC3, likely(0xC3, 'd')}, NewToken{id, 0xA9, likely(0xA9, 'd')},
           finished(id, FinishReason::kLength, 2)});
  const json::value body = json::parse(generation->take_body());
  EXPECT_EQ(body.at_pointer("/choices/0/message/content"), "\xC3\xA9");
  const json::value& content = body.at_pointer("/choices/0/logprobs/content");
  ASSERT_EQ(content.as_array().size(), 2U);
  EXPECT_EQ(content.at(0).at("token"), "bytes:\\xc3");
  EXPECT_EQ(content.at(0).at("bytes"), json::array{0xC3});
  EXPECT_EQ(content.at(1).at("top_logprobs").as_array().size(), 1U);
  EXPECT_EQ(body.at_pointer("/choices/0/token_ids"), (json::array{0xC3, 0xA9}));
  EXPECT_EQ(body.at("prompt_token_ids").as_array().size(), request.prompt.size());
  EXPECT_TRUE(body.at_pointer("/prompt_logprobs/0").is_null());
  EXPECT_EQ(body.at_pointer("/prompt_logprobs/1/124/decoded_token"), "|");
  EXPECT_EQ(body.at_pointer("/prompt_logprobs/1/98/rank"), 2);
}

TEST_F(AnswersTest, StopStringsWaitForMinTokens) {
  const auto generation =
      generate("/v1/completions", R"({"prompt":"x","stop":["a"],"min_tokens":2,"max_tokens":9})");
  const RequestId id = arrivals().at(0).id;
  deliver({Accepted{id}});
  tokens(id, "aaba");
  deliver({finished(id, FinishReason::kCancelled, 4)});
  EXPECT_EQ(json::parse(generation->take_body()).at_pointer("/choices/0/text"), "aab");
}

TEST_F(AnswersTest, ShowsSpecialTokensWhenAsked) {
  for (const bool skip : {true, false}) {
    const auto generation = generate(
        "/v1/completions", fmt::format(R"({{"prompt":"x","skip_special_tokens":{}}})", skip));
    const RequestId id = arrivals().at(0).id;
    deliver({Accepted{id}, NewToken{id, 'a'}, NewToken{id, ByteTokenizer::kBos},
             finished(id, FinishReason::kLength, 2)});
    EXPECT_EQ(json::parse(generation->take_body()).at_pointer("/choices/0/text"),
              skip ? "a" : "a<s>");
  }
}

TEST_F(AnswersTest, FormatsBecomeConstraintsAndBadOnesAreRefused) {
  generate("/v1/completions", R"({"prompt":"a","guided_choice":["yes","no"],"n":2})");
  const auto requests = arrivals();
  ASSERT_NE(requests.at(0).constraint, nullptr);
  EXPECT_NE(requests[0].constraint, requests.at(1).constraint) << "one per choice";
  std::vector<std::uint64_t> mask(token_mask_words(tokenizer.vocab_size()));
  requests[0].constraint->allowed_after({}, mask);
  EXPECT_EQ(mask['y' / 64] >> ('y' % 64) & 1U, 1U);
  EXPECT_EQ(mask['m' / 64] >> ('m' % 64) & 1U, 0U);
  const HttpReply reply = refused("/v1/completions", R"({"prompt":"a","guided_regex":"(a"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(error_of(reply).at("param"), "guided_regex");
}

TEST_F(AnswersTest, Embeddings) {
  for (const bool base64 : {false, true}) {
    const auto generation =
        generate("/v1/embeddings", fmt::format(R"({{"input":["a",[1,2]],"encoding_format":"{}"}})",
                                               base64 ? "base64" : "float"));
    const auto requests = arrivals();
    ASSERT_EQ(requests.size(), 2U);
    EXPECT_EQ(requests[0].pooling, Pooling::kMean);
    EXPECT_EQ(requests[0].max_tokens, 0);
    for (const Request& request : requests) {
      Finished end = finished(request.id, FinishReason::kLength, 0);
      end.embedding = {3, -4};
      deliver({Accepted{request.id}, end});
    }
    const json::value body = json::parse(generation->take_body());
    EXPECT_EQ(body.at("object"), "list");
    EXPECT_EQ(body.at_pointer("/data/1/index"), 1);
    EXPECT_EQ(body.at_pointer("/usage/prompt_tokens"), 4);
    const json::value& vector = body.at_pointer("/data/0/embedding");
    if (base64) {
      EXPECT_EQ(vector, "mpkZP83MTL8=") << "0.6 and -0.8 as floats";
    } else {
      EXPECT_FLOAT_EQ(static_cast<float>(vector.at(0).as_double()), 0.6F);
      EXPECT_FLOAT_EQ(static_cast<float>(vector.at(1).as_double()), -0.8F);
    }
  }
  const auto reply = refused("/v1/embeddings", R"({"input":"a","dimensions":3})");
  EXPECT_EQ(error_of(reply).at("param"), "dimensions");
}

TEST_F(AnswersTest, EmbeddingsThatAreNotFiniteFail) {
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    const auto generation = generate("/v1/embeddings", R"({"input":"a"})");
    const RequestId id = arrivals().at(0).id;
    Finished end = finished(id, FinishReason::kLength, 0);
    end.embedding = {1, bad};
    deliver({Accepted{id}, end});
    ASSERT_TRUE(generation->failure());
    EXPECT_EQ(generation->failure()->status, 500);
    EXPECT_NE(generation->failure()->message.find("not finite"), std::string::npos);
  }
}

TEST_F(AnswersTest, LogprobsThatAreNotFiniteAreWrittenAsTheLowest) {
  const auto generation = generate("/v1/completions", R"({"prompt":"a","logprobs":1})");
  const RequestId id = arrivals().at(0).id;
  const float bad[] = {std::nanf(""), HUGE_VALF, -HUGE_VALF};
  deliver({Accepted{id}});
  for (const float logprob : bad) {
    deliver({NewToken{id, 'a', TokenLogprobs{.logprob = logprob, .top = {{'a', logprob}}}}});
  }
  deliver({finished(id, FinishReason::kLength, 3)});
  const json::value body = json::parse(generation->take_body());
  EXPECT_EQ(body.at_pointer("/choices/0/logprobs/token_logprobs"),
            (json::array{-9999, -9999, -9999}));
}

TEST_F(AnswersTest, TokensOfTextsAndBack) {
  const auto ask = [this](const char* path, const char* body) {
    return json::parse(std::get<HttpReply>(post(path, body)).body);
  };
  const json::value prompt = ask("/tokenize", R"({"prompt":"ab","return_token_strs":true})");
  EXPECT_EQ(prompt.at("tokens"), (json::array{256, 97, 98}));
  EXPECT_EQ(prompt.at("count"), 3);
  EXPECT_EQ(prompt.at("max_model_len"), 100);
  EXPECT_EQ(prompt.at("token_strs"), (json::array{"<s>", "a", "b"}));
  EXPECT_EQ(ask("/tokenize", R"({"content":"ab"})").at("tokens"), (json::array{97, 98}));
  EXPECT_EQ(
      ask("/tokenize", R"({"content":"\u00e9","with_pieces":true})").at_pointer("/tokens/0/piece"),
      json::array{0xC3});
  EXPECT_EQ(ask("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})").at("count"),
            std::ssize(tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
                                        {.add_special = false})));
  const json::value text = ask("/detokenize", R"({"tokens":[256,97,98]})");
  EXPECT_EQ(text.at("prompt"), "<s>ab");
  EXPECT_EQ(text.at("content"), "<s>ab");
  EXPECT_EQ(refused("/detokenize", R"({"tokens":[300]})").status, 400);
  EXPECT_EQ(refused("/tokenize", R"({"prompt":"a","model":"gpt"})").status, 404);
}

TEST_F(AnswersTest, LongInputsArePreparedInTheBackground) {
  std::vector<BackgroundWork::Job> jobs;
  Environment background = environment();
  background.in_background = [&](BackgroundWork::Job job) {
    jobs.push_back(std::move(job));
    return true;
  };
  ServedModel roomy = model();
  roomy.max_model_len = 100'000;
  Service other({.max_outstanding = 2}, roomy, {}, background, inbox);
  other.set_state(ServerState::kReady);
  const std::string prompt(static_cast<std::size_t>(kLongTextBytes) + 1, 'x');
  const auto ask = [&](const char* path) {
    return other.handle(
        {.method = "POST", .target = path, .body = R"({"prompt":")" + prompt + "\"}"});
  };
  const auto load = [&] { return other.outstanding(); };
  const auto run_next = [&] {
    const BackgroundWork::Job job = std::exchange(jobs.at(0), nullptr);
    jobs.erase(jobs.begin());
    job()();
  };
  const auto pending = std::get<std::shared_ptr<PendingReply>>(ask("/v1/completions"));
  bool ready = false;
  pending->on_ready = [&] { ready = true; };
  run_next();
  EXPECT_TRUE(ready);
  const auto generation = pending->answer;
  ASSERT_NE(generation, nullptr) << "its body is read";
  EXPECT_EQ(load(), 1) << "what is being prepared counts";
  EXPECT_TRUE(arrivals().empty());
  bool changed = false;
  generation->on_change = [&] { changed = true; };
  run_next();
  EXPECT_TRUE(changed);
  EXPECT_EQ(arrivals().at(0).prompt.size(), prompt.size() + 1);

  const auto left = std::get<std::shared_ptr<PendingReply>>(ask("/v1/completions"));
  run_next();
  left->answer->abandon();
  run_next();
  EXPECT_TRUE(arrivals().empty()) << "its client has left";

  ask("/v1/completions");  // its client leaves at once
  run_next();
  EXPECT_TRUE(jobs.empty()) << "its client has left before it was read";

  const auto tokens = std::get<std::shared_ptr<PendingReply>>(ask("/tokenize"));
  EXPECT_FALSE(tokens->reply);
  run_next();
  ASSERT_TRUE(tokens->reply);
  EXPECT_EQ(json::parse(tokens->reply->body).at("count"), std::ssize(prompt) + 1);
}

TEST_F(AnswersTest, LongBodiesAreReadInTheBackground) {
  std::vector<BackgroundWork::Job> jobs;
  bool room = true;
  Environment background = environment();
  background.in_background = [&](BackgroundWork::Job job) {
    jobs.push_back(std::move(job));
    return room;
  };
  Service other({.max_outstanding = 2}, model(), {}, background, inbox);
  other.set_state(ServerState::kReady);
  const std::string many(static_cast<std::size_t>(kLongTextBytes) + 1, '[');
  for (const char* path :
       {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages",
        "/v1/messages/count_tokens", "/v1/embeddings", "/tokenize", "/detokenize"}) {
    const HttpCall call{.method = "POST", .target = path, .body = many};
    const auto pending = std::get<std::shared_ptr<PendingReply>>(other.handle(call));
    EXPECT_FALSE(pending->reply) << path;
    jobs.back()()();
    ASSERT_TRUE(pending->reply) << path;
    EXPECT_EQ(pending->reply->status, 400);
    EXPECT_NE(pending->reply->body.find("too deep"), std::string::npos) << pending->reply->body;
  }
  room = false;
  EXPECT_EQ(
      std::get<HttpReply>(other.handle({.method = "POST", .target = "/tokenize", .body = many}))
          .status,
      429);
}

}  // namespace
}  // namespace protean

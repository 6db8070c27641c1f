// Tests the service without sockets: calls, requests to the engine, answers.

#include "server/test_scenes/service_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

TEST_F(ServiceTest, RequestHasDefaultsOfTheModelAndOfOpenAi) {
  generate("/v1/completions", R"({"prompt":"ab"})");
  generate("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"seed":5,
      "temperature":0,"top_k":3,"stop_token_ids":[9],"ignore_eos":true,"cache_salt":"s"})");
  const auto requests = arrivals();
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].prompt, (std::vector<TokenId>{ByteTokenizer::kBos, 'a', 'b'}));
  EXPECT_EQ(requests[0].max_tokens, 16);
  EXPECT_EQ(requests[0].sampling.temperature, 0.25F);
  EXPECT_EQ(requests[0].sampling.seed, 42U);
  EXPECT_EQ(requests[0].stop_ids, std::vector<TokenId>{ByteTokenizer::kEos});
  const auto wanted = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
                                       {.add_special = false});
  EXPECT_EQ(requests[1].prompt, wanted);
  EXPECT_EQ(requests[1].max_tokens, 100 - std::ssize(wanted));
  EXPECT_EQ(requests[1].sampling.seed, 5U);
  EXPECT_EQ(requests[1].sampling.temperature, 0.0F);
  EXPECT_EQ(requests[1].sampling.top_k, 3);
  EXPECT_EQ(requests[1].stop_ids, std::vector<TokenId>{9});
  EXPECT_EQ(requests[1].cache_salt, "s");
}

TEST_F(ServiceTest, EmptyPromptIsBosOrRefused) {
  generate("/v1/completions", R"({"prompt":"","add_special_tokens":false})");
  EXPECT_EQ(arrivals().at(0).prompt, std::vector<TokenId>{ByteTokenizer::kBos});
  const ByteTokenizer without_bos(false);
  ServedModel other = model();
  other.tokenizer = &without_bos;
  Service service_without({}, other, {}, environment(), inbox);
  service_without.set_state(ServerState::kReady);
  const auto answer = service_without.handle(
      {.method = "POST", .target = "/v1/completions", .body = R"({"prompt":[""]})"});
  EXPECT_EQ(std::get<HttpReply>(answer).status, 400);
}

TEST_F(ServiceTest, TooLongPromptsNameTheNumbers) {
  const auto reply = refused("/v1/completions", R"({"prompt":"ab","max_tokens":98})");
  EXPECT_EQ(reply.status, 400);
  const json::object error = error_of(reply);
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  const std::string_view message = error.at("message").as_string();
  for (const char* number : {"100", "101", "98", "3 "}) {
    EXPECT_NE(message.find(number), std::string_view::npos) << message << " lacks " << number;
  }
  refused("/v1/completions", R"({"prompt":"a","max_tokens":9223372036854775807})");
  refused("/v1/completions", "{\"prompt\":\"" + std::string(100, 'x') + "\"}");
  generate("/v1/completions", R"({"prompt":"ab","max_tokens":97})");
  EXPECT_EQ(arrivals().size(), 1U);
}

TEST_F(ServiceTest, ATooLongTextWithoutAnAnswerIsToldNothingOfAnAnswersLength) {
  const json::object error =
      error_of(refused("/v1/embeddings", R"({"input":")" + std::string(100, 'x') + R"("})"));
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
  EXPECT_EQ(error.at("message"),
            "this model's context holds 100 tokens, but the input has 101; shorten the input");
}

TEST_F(ServiceTest, ModelAndTokenIdsMustExist) {
  EXPECT_EQ(refused("/v1/completions", R"({"model":"gpt","prompt":"a"})").status, 404);
  const auto reply = refused("/v1/completions", R"({"prompt":[1,258]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(error_of(reply).at("param"), "prompt");
  generate("/v1/completions", R"({"model":"alias","prompt":[1,257]})");
}

TEST_F(ServiceTest, WholeAnswer) {
  const auto generation =
      generate("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}]})");
  const RequestId id = arrivals().at(0).id;
  deliver({Accepted{id}});
  tokens(id, "h\xC3\xA9");
  EXPECT_FALSE(generation->done());
  deliver({NewToken{id, '"'}, finished(id, FinishReason::kLength, 4)});
  ASSERT_TRUE(generation->done());
  const json::value body = json::parse(generation->take_body());
  EXPECT_EQ(body.at("id"), "chatcmpl-r1");
  EXPECT_EQ(body.at("object"), "chat.completion");
  EXPECT_EQ(body.at("created"), 1'700'000'000);
  EXPECT_EQ(body.at("model"), "tiny");
  EXPECT_EQ(body.at_pointer("/choices/0/message/content"), "h\xC3\xA9\"");
  EXPECT_EQ(body.at_pointer("/choices/0/message/role"), "assistant");
  EXPECT_EQ(body.at_pointer("/choices/0/finish_reason"), "length");
  EXPECT_EQ(body.at_pointer("/usage/completion_tokens"), 4);
  EXPECT_EQ(body.at_pointer("/usage/prompt_tokens_details/cached_tokens"), 2);
}

TEST_F(ServiceTest, StreamHasRoleThenAChunkPerStepThenEndUsageDone) {
  const auto generation =
      generate("/v1/chat/completions",
               R"({"messages":[{"role":"user","content":"x"}],"stream":true,"stop":["zz"],
          "stream_options":{"include_usage":true}})");
  const RequestId id = arrivals().at(0).id;
  EXPECT_FALSE(generation->started());
  deliver({Accepted{id}});
  EXPECT_TRUE(generation->started());
  tokens(id, "a\xC3\xA9z");  // a, half, whole, held back
  deliver({finished(id, FinishReason::kStop, 5)});
  const auto events = events_of(generation->take_events());
  ASSERT_EQ(events.size(), 9U);
  EXPECT_EQ(events[0].at_pointer("/choices/0/delta/role"), "assistant");
  EXPECT_EQ(events[0].at("object"), "chat.completion.chunk");
  const char* texts[] = {"a", "", "\xC3\xA9", "", "z"};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(events[i + 1].at_pointer("/choices/0/delta/content"), texts[i]) << i;
    EXPECT_TRUE(events[i + 1].at_pointer("/choices/0/finish_reason").is_null());
    EXPECT_TRUE(events[i + 1].at("usage").is_null());
  }
  EXPECT_TRUE(events[6].at_pointer("/choices/0/delta").as_object().empty());
  EXPECT_EQ(events[6].at_pointer("/choices/0/finish_reason"), "stop");
  EXPECT_TRUE(events[7].at("choices").as_array().empty());
  EXPECT_EQ(events[7].at_pointer("/usage/completion_tokens"), 5);
  EXPECT_EQ(events[8], "[DONE]");
}

TEST_F(ServiceTest, StopStringAcrossTokensCutsTheTextAndCancels) {
  for (const char* keep : {"false", "true"}) {
    const auto generation = generate("/v1/completions", R"({"prompt":"x","stop":["END"],
        "stream":true,"include_stop_str_in_output":)" + std::string(keep) +
                                                            "}");
    const RequestId id = arrivals().at(0).id;
    deliver({Accepted{id}});
    tokens(id, "abEN");
    EXPECT_TRUE(cancels().empty());
    tokens(id, "Dcd");
    EXPECT_EQ(cancels(), std::vector<RequestId>{id});
    deliver({finished(id, FinishReason::kCancelled, 7)});
    std::string text;
    const auto events = events_of(generation->take_events());
    for (const json::value& event : events) {
      text += event.is_object() ? event.at_pointer("/choices/0/text").as_string().c_str() : "";
    }
    EXPECT_EQ(text, keep == std::string_view("true") ? "abEND" : "ab");
    EXPECT_EQ(events[events.size() - 2].at_pointer("/choices/0/finish_reason"), "stop");
    EXPECT_EQ(events[events.size() - 2].at_pointer("/choices/0/stop_reason"), "END");
  }
}

TEST_F(ServiceTest, StopReasonNamesTheClientsTokenOnly) {
  for (const TokenId stop : {TokenId{9}, ByteTokenizer::kEos}) {
    const auto generation = generate("/v1/completions", R"({"prompt":"x","stop_token_ids":[9]})");
    const RequestId id = arrivals().at(0).id;
    Finished end = finished(id, FinishReason::kStop, 1);
    end.stop_id = stop;
    deliver({Accepted{id}, end});
    const json::value body = json::parse(generation->take_body());
    EXPECT_EQ(body.at_pointer("/choices/0/stop_reason"),
              stop == 9 ? json::value(9) : json::value(nullptr));
  }
}

TEST_F(ServiceTest, SeveralPromptsAreChoicesOfOneAnswer) {
  const auto generation = generate("/v1/completions", R"({"prompt":["a","b",[1,2]]})");
  const auto requests = arrivals();
  ASSERT_EQ(requests.size(), 3U);
  deliver({Accepted{requests[0].id}, Accepted{requests[1].id}});
  EXPECT_FALSE(generation->started());
  deliver({Accepted{requests[2].id}});
  tokens(requests[2].id, "C");
  tokens(requests[0].id, "A");
  for (const Request& request : requests) {
    EXPECT_FALSE(generation->done());
    deliver({finished(request.id, FinishReason::kLength, 1)});
  }
  const json::value body = json::parse(generation->take_body());
  EXPECT_EQ(body.at("choices").as_array().size(), 3U);
  EXPECT_EQ(body.at_pointer("/choices/0/text"), "A");
  EXPECT_EQ(body.at_pointer("/choices/1/text"), "");
  EXPECT_EQ(body.at_pointer("/choices/2/text"), "C");
  EXPECT_EQ(body.at_pointer("/choices/2/index"), 2);
  EXPECT_EQ(body.at_pointer("/usage/prompt_tokens"), 2 + 2 + 2);
}

TEST_F(ServiceTest, RefusalOfOneChoiceRefusesAllAndKeepsItsStatus) {
  const auto generation = generate("/v1/completions", R"({"prompt":["a","b"],"stream":true})");
  const auto requests = arrivals();
  deliver({Accepted{requests[0].id}});
  deliver({Refused{requests[1].id, make_error(ErrorCode::kExhausted, "no KV")}});
  EXPECT_FALSE(generation->started());
  ASSERT_TRUE(generation->failure());
  EXPECT_EQ(error_reply(*generation->failure()).status, 429);
  EXPECT_EQ(error_of(error_reply(*generation->failure())).at("code"), "queue_full")
      << "the request set no deadline";
  EXPECT_EQ(cancels(), std::vector<RequestId>{requests[0].id});
}

TEST_F(ServiceTest, FailureInAStreamIsAnEventWithoutDone) {
  const auto generation = generate("/v1/completions", R"({"prompt":"a","stream":true})");
  const RequestId id = arrivals().at(0).id;
  deliver({Accepted{id}, NewToken{id, 'x'}});
  Finished end = finished(id, FinishReason::kFailed, 1);
  end.failure = "device lost";
  deliver({end});
  EXPECT_TRUE(generation->done());
  const auto events = events_of(generation->take_events());
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].at_pointer("/error/message"), "the answer failed: device lost");
}

TEST_F(ServiceTest, AFailureThatMayPassGets503) {
  for (const bool passes : {true, false}) {
    const auto generation = generate("/v1/completions", R"({"prompt":"a"})");
    const RequestId id = arrivals().at(0).id;
    Finished end = finished(id, FinishReason::kFailed, 0);
    end.may_retry = passes;
    deliver({Accepted{id}, end});
    ASSERT_TRUE(generation->failure().has_value());
    EXPECT_EQ(generation->failure()->status, passes ? 503 : 500);
  }
}

TEST_F(ServiceTest, MoreThanTheLimitGets429UntilSomeEnd) {
  generate("/v1/completions", R"({"prompt":["a","b","c"]})");
  auto reply = refused("/v1/completions", R"({"prompt":["d","e"]})");
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(error_of(reply).at("code"), "queue_full");
  ASSERT_EQ(reply.headers.size(), 1U);
  EXPECT_EQ(reply.headers[0].first, "Retry-After");
  EXPECT_EQ(refused("/v1/completions", R"({"prompt":["1","2","3","4","5"]})").status, 400);
  const auto requests = arrivals();
  deliver({Accepted{requests[0].id}, finished(requests[0].id, FinishReason::kLength, 1)});
  generate("/v1/completions", R"({"prompt":["d","e"]})");
}

TEST_F(ServiceTest, FullInboxCancelsTheChoicesItTook) {
  for (int i = 0; i < 6; ++i) {
    inbox.push({0, Cancel{RequestId{99}}});
  }
  EXPECT_EQ(refused("/v1/completions", R"({"prompt":["a","b","c"]})").status, 429);
  std::vector<RequestId> arrived;
  std::vector<RequestId> taken_back;
  for (const Event& event : sent()) {
    if (const Arrival* arrival = std::get_if<Arrival>(&event.what)) {
      arrived.push_back(arrival->request.id);
    } else if (std::get<Cancel>(event.what).request != RequestId{99}) {
      taken_back.push_back(std::get<Cancel>(event.what).request);
    }
  }
  EXPECT_EQ(arrived.size(), 2U);
  EXPECT_EQ(taken_back, arrived);
}

TEST_F(ServiceTest, EndpointsMethodsAndStates) {
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/ping").status, 200);
  EXPECT_EQ(json::parse(get("/version?x=1").body).at("version"), "9.9");
  const json::value models = json::parse(get("/v1/models/").body);
  EXPECT_EQ(models.at_pointer("/data/0/id"), "tiny");
  EXPECT_EQ(models.at_pointer("/data/1/max_model_len"), 100);
  EXPECT_EQ(json::parse(get("/v1/models/t%69ny").body).at("id"), "tiny");
  EXPECT_EQ(get("/v1/models/other").status, 404);
  for (const char* nowhere : {"/assets/none.js", "/assets/", "/api", "/v2", "/v1/models/../health",
                              "nonsense", "", "/%zz", "//"}) {
    const HttpReply reply = get(nowhere);
    EXPECT_EQ(reply.status, 404) << nowhere;
    error_of(reply);
  }
  const HttpReply of_ollama = get("/api/delete", "DELETE");
  EXPECT_EQ(of_ollama.status, 404);
  EXPECT_TRUE(boost::json::parse(of_ollama.body).at("error").is_string()) << of_ollama.body;
  const HttpReply wrong_method = get("/v1/chat/completions");
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(error_of(wrong_method).at("code"), "method_not_allowed");
  EXPECT_EQ(get("/health", "DELETE").status, 405);
  EXPECT_EQ(get("/v1/completions", "OPTIONS").status, 204);
  EXPECT_EQ(get("*", "OPTIONS").status, 204);
  for (const ServerState state : {ServerState::kLoading, ServerState::kDraining}) {
    service.set_state(state);
    EXPECT_EQ(get("/health").status, 503);
    EXPECT_EQ(get("/v1/models").status, 503);
    EXPECT_EQ(refused("/v1/completions", R"({"prompt":"a"})").status, 503);
    EXPECT_EQ(get("/version").status, 200);
    EXPECT_EQ(get("/metrics").status, 200);
  }
}

TEST_F(ServiceTest, ModelInThePathNeedNotBeUtf8) {
  const auto reply = get("/v1/models/%ff%fe");
  EXPECT_EQ(reply.status, 404);
  EXPECT_NE(reply.body.find(R"(model \"??\" does not)"), std::string::npos) << reply.body;
  EXPECT_EQ(error_of(reply).at("code"), "model_not_found");
}

TEST_F(ServiceTest, ApiKeyGuardsTheApiOnly) {
  const std::vector<std::string> keys{"secret", "other"};
  const Models guarded({&service}, ApiKeys(keys));
  const auto status = [&](const char* path, const char* authorization) {
    const auto refusal =
        guarded.refuse_early({.method = "GET", .target = path, .authorization = authorization});
    return refusal ? refusal->status : 200;
  };
  EXPECT_EQ(status("/v1/models", ""), 401);
  EXPECT_EQ(status("/v1/models", "Bearer "), 401);
  EXPECT_EQ(status("/v1/models", "Bearer secre"), 401);
  EXPECT_EQ(status("/v1/models", "Bearer secretsecret"), 401);
  EXPECT_EQ(status("/v1/models", "Basic secret"), 401);
  EXPECT_EQ(status("/v1/models", "Bearer secret"), 200);
  EXPECT_EQ(status("/v1/models", "bearer secret"), 200);
  EXPECT_EQ(status("/health", ""), 200);
}

TEST_F(ServiceTest, MetricsCountWhatHappened) {
  observation = {.running = 2,
                 .waiting = 1,
                 .kv_blocks = 8,
                 .kv_blocks_used = 2,
                 .preemptions_total = 3,
                 .prompt_tokens_total = 20,
                 .output_tokens_total = 5,
                 .step_tokens = 9};
  generate("/v1/completions", R"({"prompt":"a"})");
  const RequestId id = arrivals().at(0).id;
  deliver({Accepted{id}, NewToken{id, 'x'}});
  deliver({NewToken{id, 'y'}, finished(id, FinishReason::kLength, 2)});
  observation.output_tokens_total = 7;
  observation.kv_blocks = 16;
  deliver({});
  models.count({.method = "POST", .target = "/v1/completions"}, 200);
  models.count({.method = "BREW", .target = "/coffee"}, 404);
  const std::string text = get("/metrics").body;
  const std::string labels = R"({engine="0",model_name="tiny")";
  const std::string lines[] = {
      "vllm:num_requests_running" + labels + "} 2\n",
      "vllm:num_requests_waiting" + labels + "} 1\n",
      "vllm:kv_cache_usage_perc" + labels + "} 0.125\n",
      "vllm:gpu_cache_usage_perc" + labels + "} 0.125\n",
      "protean:kv_blocks_total" + labels + "} 16\n",
      "vllm:num_preemptions_total" + labels + "} 3\n",
      "vllm:generation_tokens_total" + labels + "} 7\n",
      "vllm:prompt_tokens_total" + labels + "} 20\n",
      "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"tiny\"}"
      " 1\n",
      "vllm:time_to_first_token_seconds_count" + labels + "} 1\n",
      "vllm:inter_token_latency_seconds_count" + labels + "} 1\n",
      "vllm:time_per_output_token_seconds_count" + labels + "} 1\n",
      "vllm:iteration_tokens_total_count" + labels + "} 3\n",
      std::string(R"(http_requests_total{handler="/v1/completions",method="POST",)"
                  R"(status="200"} 1)"),
      std::string(R"(http_requests_total{handler="none",method="other",status="404"} 1)"),
      std::string(R"(# TYPE vllm:num_preemptions_total counter)"),
      std::string(R"(num_gpu_blocks="16"} 1)"),
  };
  for (const std::string& line : lines) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(text.find(R"(num_gpu_blocks="8")"), std::string::npos);
}

RegroupRecord change_of_groups(bool together, TimeNs took_ns, std::string failure = "") {
  return {.replicas = {ReplicaId{0}, ReplicaId{1}},
          .together = together,
          .reason = "asked for",
          .asked_ns = 1,
          .begun_ns = 1,
          .done_ns = 1 + took_ns,
          .kv_bytes = 100,
          .weight_bytes = 1000,
          .failure = std::move(failure)};
}

// Several changes of groups may end between two statuses.
TEST_F(ServiceTest, EachChangeOfGroupsIsMeasuredAndEachFailureLogged) {
  const auto deliver_groups = [&](const GroupsStatus& status) {
    service.deliver({.at_ns = now_ns,
                     .observation = observation,
                     .groups = std::make_shared<const GroupsStatus>(status)});
  };
  GroupsStatus status{.history = {change_of_groups(true, kNsPerS)},
                      .together_total = 1,
                      .kv_bytes_total = 100,
                      .weight_bytes_total = 1000};
  deliver_groups(status);
  status.history.push_back(change_of_groups(false, 2 * kNsPerS));
  status.history.push_back(change_of_groups(true, 4 * kNsPerS));
  status.history.push_back(change_of_groups(true, 8 * kNsPerS));
  status.history.push_back(change_of_groups(false, kNsPerS, "turned back: an operator's wish"));
  status.together_total = 3;
  status.apart_total = status.failures_total = 1;
  status.kv_bytes_total = 500;
  status.weight_bytes_total = 5000;
  testing::internal::CaptureStderr();
  deliver_groups(status);
  deliver_groups(status);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string line =
      "groups of replicas 0, 1 are apart after a change that did not succeed: turned back: an "
      "operator's wish";
  EXPECT_NE(log.find(line), std::string::npos) << log;
  EXPECT_EQ(log.find(line), log.rfind(line)) << "each is logged once";
  const std::string text = get("/metrics").body;
  for (const char* const metric :
       {R"(protean:regrouping_seconds_count{model_name="tiny",to="group"} 3)",
        R"(protean:regrouping_seconds_sum{model_name="tiny",to="group"} 13)",
        R"(protean:regrouping_seconds_sum{model_name="tiny",to="replicas"} 2)",
        R"(protean:regrouping_failures_total{model_name="tiny"} 1)",
        R"(protean:regrouping_bytes_total{model_name="tiny",of="kv"} 500)",
        R"(protean:regrouping_bytes_total{model_name="tiny",of="weights"} 5000)"}) {
    EXPECT_NE(text.find(metric), std::string::npos) << metric;
  }
}

}  // namespace
}  // namespace protean

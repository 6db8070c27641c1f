// Tests the operators' port of a server that also has a public one.

#include "server/operators/admin.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/json/serialize.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log_output.h"
#include "server/test_scenes/residents_for_test.h"
#include "server/test_scenes/server_for_test.h"

namespace protean {
namespace {

struct AdminTest : ServerTest {
  AdminTest() {
    options.admin.port = 0;
    form = {.group = {whole_model(2, 1, DeviceId{0})},
            .layer_precision = {{Precision::kBf16, Precision::kBf16},
                                {Precision::kF32, Precision::kF32}},
            .kv = {.blocks = 7}};
  }
  Response ask(const std::string& line, const std::string& headers = "Host: 127.0.0.1\r\n",
               const std::string& body = "") {
    Client client(server->admin_port());
    client.send(line + " HTTP/1.1\r\n" + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.read();
  }
};

TEST_F(AdminTest, ShowsTheFormAndHealthAndSetsTheLogLevel) {
  start();
  const auto form = body_of(ask("GET /admin/form"));
  EXPECT_EQ(form.at("state"), "ready");
  EXPECT_EQ(form.at_pointer("/form/kv_blocks"), 7);
  EXPECT_EQ(form.at_pointer("/now/kv_blocks"), 7) << "before the first step too";
  EXPECT_EQ(form.at_pointer("/form/layer_precision/1"), "f32");
  EXPECT_EQ(ask("GET /health").result_int(), 200U);
  EXPECT_NE(ask("GET /metrics").body().find("vllm:num_requests_running"), std::string::npos);
  const std::string host = "Host: localhost\r\n";
  EXPECT_EQ(body_of(ask("PUT /admin/log-level", host, R"({"level":"off"})")).at("level"), "off");
  EXPECT_EQ(log::level(), log::Level::kOff);
  for (const char* bad : {R"({"level":"loud"})", R"({"level":3})", "[]", "{", ""}) {
    expect_error(ask("PUT /admin/log-level", host, bad), 400);
  }
  EXPECT_EQ(body_of(ask("GET /admin/log-level")).at("level"), "off");
  expect_error(ask("DELETE /admin/form"), 405);
  expect_error(ask("GET /v1/models"), 404);
}

TEST_F(AdminTest, CallsAreCountedByTheirPath) {
  start();
  ask("GET /admin/form?model=echo");
  ask("DELETE /admin/form");
  ask("GET /v1/models");
  const std::string metrics = ask("GET /metrics").body();
  for (const char* counted : {R"({handler="/admin/form",method="GET",status="200"} 1)",
                              R"({handler="/admin/form",method="DELETE",status="405"} 1)",
                              R"({handler="none",method="GET",status="404"} 1)"}) {
    EXPECT_NE(metrics.find("http_requests_total" + std::string(counted)), std::string::npos)
        << counted << "\n"
        << metrics;
  }
}

struct AdminLogTest : ResidentsTest {};

TEST_F(AdminLogTest, CallsThatChangeSomethingAreNoRoutine) {
  const Admin admin(residents.models(), {.keys = {}, .drain = {}, .residents = residents});
  const auto routine = [&](const char* method, int status) {
    return admin.routine({.method = method, .target = "/admin/form"}, status);
  };
  EXPECT_TRUE(routine("GET", 200));
  EXPECT_TRUE(routine("HEAD", 200));
  EXPECT_FALSE(routine("PUT", 202));
  EXPECT_FALSE(routine("GET", 503));
}

TEST_F(AdminTest, TheQueryNamesTheModel) {
  start();
  const auto models = body_of(ask("GET /admin/models"));
  ASSERT_EQ(models.at("models").as_array().size(), 1U);
  EXPECT_EQ(models.at_pointer("/models/0/names/0"), "echo");
  EXPECT_TRUE(models.at_pointer("/models/0/jobs").as_array().empty());
  EXPECT_EQ(models.at_pointer("/models/0/now/kv_blocks"), 7);
  EXPECT_EQ(models.at_pointer("/models/0/own_bytes"), models.at_pointer("/models/0/device_bytes"));
  EXPECT_EQ(body_of(ask("GET /admin/form?model=%65cho&replica=0")).at("model"), "echo");
  EXPECT_EQ(ask("GET /admin/recording?model=echo").result_int(), 200U);
  EXPECT_EQ(ask("GET /admin/recording?model=echo&minutes=3").result_int(), 200U);
  expect_error(ask("GET /admin/recording?model=echo&minutes=0"), 400);
  for (const char* path : {"form", "morphs", "fleet", "events", "recording"}) {
    expect_error(ask(fmt::format("GET /admin/{}?model=other", path)), 404);
  }
  expect_error(ask("GET /admin/form?model="), 404);
}

TEST_F(AdminTest, ListsTheConfigurationsThatPlansKept) {
  configurations = [](const LoadFilter& wanted) -> Result<boost::json::object> {
    if (wanted.batch == 2) {
      return make_error(ErrorCode::kUnavailable, "the disk is gone");
    }
    return boost::json::object{{"maps", wanted.batch}, {"tokens", wanted.prompt_tokens}};
  };
  start();
  EXPECT_EQ(boost::json::serialize(body_of(ask("GET /admin/configurations?model=echo"))),
            R"({"model":"echo","maps":0,"tokens":0})");
  const auto some = body_of(ask("GET /admin/configurations?batch=8&prompt_tokens=30"));
  EXPECT_EQ(some.at("maps"), 8);
  EXPECT_EQ(some.at("tokens"), 30);
  expect_error(ask("GET /admin/configurations?batch=2"), 503);
  expect_error(ask("GET /admin/configurations?batch=few"), 400);
  expect_error(ask("GET /admin/configurations?model=other"), 404);
  EXPECT_TRUE(body_of(ask("GET /admin/models")).at_pointer("/models/0/wake_seconds").is_null());
  server->loaded(0, 1.5);
  EXPECT_EQ(body_of(ask("GET /admin/models")).at_pointer("/models/0/wake_seconds"), 1.5);
}

TEST_F(AdminTest, RecordsAndAsksForTheKeyOfAllButThePage) {
  options.admin.keys = ApiKeys(std::vector<std::string>{"secret"});
  start();
  expect_error(ask("GET /admin/recording"), 401);
  expect_error(ask("GET /admin/events"), 401);
  const Response away = ask("GET /");
  EXPECT_EQ(away.result_int(), 307U);
  EXPECT_EQ(away["Location"], "dashboard");
  EXPECT_NE(ask("GET /dashboard").result_int(), 401U);
  expect_error(ask("GET /assets/none.js"), 404);
  const std::string key = "Host: 127.0.0.1\r\nAuthorization: Bearer secret\r\n";
  const Response recording = ask("GET /admin/recording?minutes=5", key);
  EXPECT_EQ(recording.result_int(), 200U);
  EXPECT_EQ(recording.body().find(R"({"protean_recording":1)"), 0U) << recording.body();
  for (const char* bad : {"minutes=0", "minutes=61", "minutes=x", "minutes=", "min", "hours=1"}) {
    expect_error(ask(std::string("GET /admin/recording?") + bad, key), 400);
  }
}

TEST_F(AdminTest, WishIsAnsweredByItsMorphWhichBecomesHistory) {
  start();
  const std::string host = "Host: 127.0.0.1\r\n";
  const auto wish = [&](const char* body) { return ask("PUT /admin/form", host, body); };
  const Response planned = wish(R"({"layers": ["bf16", "bf16/w4"]})");
  EXPECT_EQ(planned.result_int(), 202U) << planned.body();
  const auto morph = body_of(planned);
  ASSERT_EQ(morph.at("steps").as_array().size(), 4U);
  EXPECT_EQ(morph.as_object().begin()->key(), "summary");
  EXPECT_EQ(morph.at("summary"), "3 halves of layers to bf16, 1 half of a layer to w4");
  EXPECT_EQ(morph.at_pointer("/steps/3/layer"), 1);
  EXPECT_EQ(morph.at_pointer("/steps/3/half"), "mlp");
  EXPECT_EQ(morph.at_pointer("/steps/3/to"), "w4");
  EXPECT_EQ(morph.at_pointer("/steps/3/text"), "layer 1 mlp to w4");

  const auto shown = body_of(ask("GET /admin/form"));
  EXPECT_EQ(shown.at_pointer("/form/layer_precision/1"), "bf16/w4");
  EXPECT_EQ(shown.at_pointer("/pinned"), true);
  EXPECT_EQ(shown.at_pointer("/totals/swaps_down"), 1);
  const auto morphs = body_of(ask("GET /admin/morphs")).at("morphs");
  ASSERT_EQ(morphs.as_array().size(), 1U);
  EXPECT_EQ(morphs.at_pointer("/0/reason"), "asked for");
  EXPECT_EQ(morphs.at_pointer("/0/ready_after_s"), 0.25);
  EXPECT_EQ(morphs.at_pointer("/0/remark"), "packed anew");
  EXPECT_TRUE(morphs.at_pointer("/0/done_after_s").is_null());
  const std::string metrics = ask("GET /metrics").body();
  for (const char* line :
       {R"(protean:layers{engine="0",model_name="echo",precision="bf16"} 1.5)",
        R"(protean:layers{engine="0",model_name="echo",precision="w4"} 0.5)",
        R"(protean:precision_swaps_total{direction="down",engine="0",model_name="echo"} 1)",
        R"(by_precision_total{engine="0",model_name="echo",precision="bf16:1.5+w4:0.5"} 7)"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line << "\n" << metrics;
  }
  const auto embeddings = body_of(wish(R"({"embeddings": "w8"})"));
  EXPECT_EQ(embeddings.at_pointer("/steps/0/kind"), "embeddings");
  EXPECT_EQ(embeddings.at_pointer("/steps/0/text"), "embeddings to w8");
  EXPECT_EQ(embeddings.at_pointer("/steps/0/to"), "w8");
  EXPECT_EQ(body_of(ask("GET /admin/form")).at_pointer("/form/embeddings"), "w8");
  EXPECT_EQ(wish(R"({"release": true})").result_int(), 202U);
  EXPECT_EQ(wish(R"({"mode": "accuracy", "quality_floor": "1layers"})").result_int(), 202U);
  const auto policy = body_of(ask("GET /admin/form"));
  EXPECT_EQ(policy.at("mode"), "accuracy");
  EXPECT_EQ(policy.at("quality_floor"), "1layers");
  expect_error(wish(R"({"kv_blocks": 1000000})"), 409);
}

struct FixedShare final : TimeShare {
  int priority() const override { return now; }
  void set_priority(int priority) override { now = priority; }
  double step_seconds() const override { return 2.5; }
  std::atomic<int> now = 1;
};

TEST_F(AdminTest, APriorityIsShownAndChanged) {
  share = std::make_shared<FixedShare>();
  start();
  const std::string host = "Host: 127.0.0.1\r\n";
  const auto put = [&](const char* body) {
    return ask("PUT /admin/priority?model=echo", host, body);
  };
  EXPECT_EQ(body_of(ask("GET /admin/priority")).at("priority"), 1);
  EXPECT_EQ(body_of(put(R"({"priority": 16})")).at("priority"), 16);
  for (const char* bad : {R"({"priority": 17})", R"({"priority": 0})", R"({"priority": "4"})",
                          R"({"priority": 4, "model": "echo"})", "[]", "{", ""}) {
    expect_error(put(bad), 400);
  }
  expect_error(ask("PUT /admin/priority?model=other", host, R"({"priority": 4})"), 404);
  expect_error(ask("DELETE /admin/priority"), 405);
  const auto models = body_of(ask("GET /admin/models"));
  EXPECT_EQ(models.at_pointer("/models/0/priority"), 16);
  EXPECT_EQ(models.at_pointer("/models/0/step_seconds"), 2.5);
  const std::string metrics = ask("GET /metrics").body();
  for (const char* line : {R"(protean:model_priority{model_name="echo"} 16)",
                           R"(protean:step_seconds_total{model_name="echo"} 2.5)"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line << "\n" << metrics;
  }
}

TEST_F(AdminTest, EachReplicaHasItsFormAndItsMetrics) {
  replicas = 3;
  start();
  const std::string host = "Host: 127.0.0.1\r\n";
  EXPECT_EQ(ask("PUT /admin/form?replica=2", host, R"({"layers": "w4"})").result_int(), 202U);
  EXPECT_EQ(body_of(ask("GET /admin/form?x=1&replica=2")).at_pointer("/form/layer_precision/0"),
            "w4");
  EXPECT_EQ(body_of(ask("GET /admin/form?replica=0")).at_pointer("/form/layer_precision/0"),
            "bf16");
  EXPECT_EQ(body_of(ask("GET /admin/morphs?replica=1")).at("morphs").as_array().size(), 0U);
  EXPECT_EQ(body_of(ask("GET /admin/morphs?replica=2")).at("morphs").as_array().size(), 1U);
  for (const char* query : {"", "?", "?replica", "?replica=", "?replica=3", "?replica=-1",
                            "?replica=1x", "?replicas=1"}) {
    const Response refused = ask(fmt::format("GET /admin/form{}", query));
    expect_error(refused, 400);
    EXPECT_NE(refused.body().find("name one with ?replica=0 to 2"), std::string::npos)
        << refused.body();
  }
  const auto fleet = body_of(ask("GET /admin/fleet"));
  EXPECT_EQ(fleet.at("router"), "first-token");
  ASSERT_EQ(fleet.at("replicas").as_array().size(), 3U);
  EXPECT_EQ(fleet.at_pointer("/replicas/2/replica"), 2);
  EXPECT_EQ(fleet.at_pointer("/replicas/1/now/kv_blocks"), 7);
  EXPECT_EQ(fleet.at_pointer("/replicas/1/routed_total"), 0);
  const std::string metrics = ask("GET /metrics").body();
  for (const char* line : {R"(protean:layers{engine="0",model_name="echo",precision="w4"} 0)",
                           R"(protean:layers{engine="2",model_name="echo",precision="w4"} 2)",
                           R"(vllm:num_requests_running{engine="1",model_name="echo"} 0)"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line << "\n" << metrics;
  }
}

TEST_F(AdminTest, RequestsMoveBetweenReplicasThatAreNamed) {
  replicas = 2;
  start();
  const auto move = [&](const char* body) {
    return ask("PUT /admin/fleet/migrate", "Host: 127.0.0.1\r\n", body);
  };
  const Response moved = move(R"({"from": 0, "to": 1, "requests": 3})");
  EXPECT_EQ(moved.result_int(), 202U);
  EXPECT_EQ(body_of(moved).at("migrating"), 3);
  EXPECT_EQ(body_of(ask("GET /admin/fleet")).at("migrations"),
            (boost::json::array{{{"from", 0}, {"to", 1}, {"moving", 1}, {"queued", 2}}}));
  EXPECT_EQ(move(R"({"from": 1, "to": 0})").result_int(), 202U);
  for (const char* wrong :
       {"", "[]", "{}", R"({"from": 0})", R"({"from": 0, "to": 0})", R"({"from": 0, "to": 2})",
        R"({"from": -1, "to": 1})", R"({"from": 0, "to": 1, "requests": 0})",
        R"({"from": 0, "to": 1, "requests": "all"})", R"({"from": 0, "to": 1, "count": 2})"}) {
    expect_error(move(wrong), 400);
  }
  expect_error(ask("GET /admin/fleet/migrate"), 405);
}

TEST_F(AdminTest, OneReplicaHasNoneToMoveRequestsTo) {
  start();
  const Response refused =
      ask("PUT /admin/fleet/migrate", "Host: 127.0.0.1\r\n", R"({"from": 0, "to": 0})");
  expect_error(refused, 400);
  EXPECT_NE(refused.body().find("the model has one: serve it with --data-parallel-size 2"),
            std::string::npos);
}

TEST_F(AdminTest, ReplicasAreGroupedAsAsked) {
  replicas = 2;
  start();
  const auto group = [&](const char* body) {
    return ask("PUT /admin/fleet", "Host: 127.0.0.1\r\n", body);
  };
  const Response grouped = group(R"({"groups": [["0", 1]], "by": "layers"})");
  EXPECT_EQ(grouped.result_int(), 202U);
  const boost::json::object change = body_of(grouped).at("changes").at(0).as_object();
  EXPECT_EQ(change.at("replicas"), (boost::json::array{"0", "1"}));
  EXPECT_EQ(change.at("by"), "layers");
  EXPECT_EQ(change.at("to"), "group");
  EXPECT_EQ(change.at("reason"), "asked for");
  EXPECT_EQ(body_of(group(R"({"groups": [["0"], ["1"]]})")).at("changes"), boost::json::array());
  for (const char* wrong :
       {"", "[]", "{}", R"({"groups": "01"})", R"({"groups": ["0", "1"]})",
        R"({"groups": [["0", "x"]]})", R"({"groups": [["0", -1]]})",
        R"({"groups": [["0", "1"]], "by": "rows"})", R"({"groups": [["0"]], "why": "so"})"}) {
    expect_error(group(wrong), 400);
  }
}

TEST_F(AdminTest, MalformedWishesAreRefusedWithTheReason) {
  start();
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"layers": "w5"})", "w5"},
      {R"({"layers": ["bf16"]})", "2 layers"},
      {R"({"layers": ["bf16", 4]})", "a layer is a precision"},
      {R"({"layers": ["bf16", "w4/"]})", "''"},
      {R"({"embeddings": "w5"})", "embeddings have a precision"},
      {R"({"embeddings": 8})", "embeddings have a precision"},
      {R"({"release": true, "embeddings": "w8"})", "alone"},
      {R"({"kv_blocks": 0})", "at least 1"},
      {R"({"kv_blocks": 1e3})", "at least 1"},
      {R"({"release": false})", "only be true"},
      {R"({"release": true, "kv_blocks": 3})", "alone"},
      {R"({"speed": 3})", "speed"},
      {R"({"mode": "fast"})", "'fast' is not a mode"},
      {R"({"mode": 1})", "is not a mode"},
      {R"({"quality_floor": "8"})", "'8' is not a quality floor"},
      {R"({"mode": "off", "layers": "w4"})", "the policy's"},
      {R"({"quality_floor": "none", "release": true})", "the policy's"},
      {"{}", "send what"},
      {"[]", "send what"},
  };
  for (const auto& [body, says] : wrong) {
    const Response refused = ask("PUT /admin/form", "Host: 127.0.0.1\r\n", body);
    expect_error(refused, 400);
    EXPECT_NE(refused.body().find(says), std::string::npos) << body << ": " << refused.body();
  }
}

TEST_F(AdminTest, ThePublicPortHasNoAdminPaths) {
  start();
  for (const char* path : {"/admin/form", "/admin/morphs", "/admin/drain", "/admin/log-level"}) {
    expect_error(get(path), 404);
  }
}

TEST_F(AdminTest, WithoutAKeyNoWebPageAndNoOtherNameReachesIt) {
  start();
  expect_error(ask("POST /admin/drain", "Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n"), 403);
  expect_error(ask("GET /admin/form", "Host: evil.example:80\r\n"), 403);
  EXPECT_EQ(ask("GET /admin/form", "Host: [::1]:80\r\n").result_int(), 200U);
  EXPECT_EQ(get("/health").result_int(), 200U);
}

TEST_F(AdminTest, AKeyOpensItAndThePublicKeyDoesNot) {
  options.admin.keys = ApiKeys(std::vector<std::string>{"operator"});
  options.keys = ApiKeys(std::vector<std::string>{"client"});
  start();
  const std::string any = "Host: anything\r\n";
  expect_error(ask("GET /admin/form", any), 401);
  expect_error(ask("GET /health", any), 401);
  expect_error(ask("GET /admin/form", any + "Authorization: Bearer client\r\n"), 401);
  EXPECT_EQ(ask("GET /admin/form", any + "Authorization: Bearer operator\r\n").result_int(), 200U);
}

TEST_F(AdminTest, AfterADrainTheSecondStopEndsAnswers) {
  options.drain_timeout_ms = 86'400'000;
  start();
  engine->stall_after(1);
  Client streaming(server->port());
  streaming.post("/v1/completions", R"({"prompt":"abcd","stream":true})");
  streaming.read_until(R"("text":"a")");
  EXPECT_EQ(ask("POST /admin/drain").result_int(), 202U);
  server->stop();
  EXPECT_EQ(body_of(ask("GET /admin/form")).at("state"), "draining");
  engine->stall_after(2);
  streaming.read_until(R"("text":"b")");
  server->stop();
  EXPECT_NE(streaming.read_until("\x01").find(R"(data: {"error":)"), std::string::npos);
  EXPECT_TRUE(engine->wait_for_cancels(1));
  thread.join();
}

TEST_F(AdminTest, AnswersADrainBeforeClosing) {
  start();
  engine->stall_after(1);
  Client streaming(server->port());
  streaming.post("/v1/completions", R"({"prompt":"abc","stream":true})");
  streaming.read_until(R"("text":"a")");
  EXPECT_EQ(ask("POST /admin/drain").result_int(), 202U);
  while (get("/health").result_int() == 200) {
    std::this_thread::yield();
  }
  EXPECT_EQ(body_of(ask("GET /admin/form")).at("state"), "draining");
  server->stop();  // as a signal that ends the process after an operator's drain
  EXPECT_EQ(body_of(ask("GET /admin/form")).at("state"), "draining");
  engine->stall_after(100);
  EXPECT_NE(streaming.read_until("[DONE]").find("[DONE]"), std::string::npos);
  thread.join();
}

TEST_F(AdminTest, PublicAddressWithoutAKeyIsRefused) {
  options.admin.host = "0.0.0.0";
  server = std::make_unique<Server>(
      options,
      std::vector<HostedModel>{
          {{.names = {"x"}, .tokenizer = &tokenizer, .chat_template = &chat_template}, {}, inbox}},
      "",
      Environment{.clock = steady_ns, .unix_time_s = [] { return std::int64_t{1}; }, .random = {}});
  const Status listening = server->listen();
  ASSERT_FALSE(listening.ok());
  EXPECT_NE(listening.error().message.find("--admin-key"), std::string::npos);
}

}  // namespace
}  // namespace protean

// Tests which of several models answers a call.

#include "server/models.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "server/test_scenes/service_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

struct ModelsTest : ServiceTest {
  ModelsTest() { second.set_state(ServerState::kReady); }

  ServedModel second_model() {
    ServedModel served = model();
    served.names = {"org/second"};
    served.max_model_len = 80;
    return served;
  }
  // Returns the name of the model whose engine was given requests since the last call, which end.
  std::string asked() {
    std::string names;
    for (const auto& [one, queue] : {std::pair(&service, &inbox), {&second, &second_inbox}}) {
      queue->push({});  // pop_all() waits for an event
      std::vector<Event> events = queue->pop_all();
      events.pop_back();
      for (const Event& event : events) {
        if (const Arrival* arrival = std::get_if<Arrival>(&event.what)) {
          names += one->model().names.front();
          one->deliver({.outputs = {finished(arrival->request.id, FinishReason::kStop, 0)}});
        }
      }
    }
    return names;
  }
  Service::Answer ask(const std::string& path, const std::string& body,
                      const std::string& method = "POST") {
    const HttpCall call{.method = method, .target = path, .request_id = "r1", .body = body};
    if (auto refusal = both.refuse_early(call)) {
      return *refusal;
    }
    return both.handle(call);
  }
  HttpReply reply(const std::string& path, const std::string& body = "",
                  const std::string& method = "POST") {
    return std::get<HttpReply>(ask(path, body, method));
  }
  json::value shown(const std::string& path) { return json::parse(reply(path, "", "GET").body); }

  BoundedQueue<Event> second_inbox{8};
  Service second{{.max_outstanding = 4},
                 second_model(),
                 {.model_name = "org/second", .version = "9.9"},
                 environment(),
                 second_inbox};
  Models both{{&service, &second}, {}};
};

TEST_F(ModelsTest, TheBodyNamesTheModelInEveryDialect) {
  const std::map<std::string, std::string> calls{
      {"/v1/completions", R"("prompt":"a"})"},
      {"/v1/chat/completions", R"("messages":[{"role":"user","content":"a"}]})"},
      {"/v1/responses", R"("input":"a"})"},
      {"/v1/messages", R"("max_tokens":5,"messages":[{"role":"user","content":"a"}]})"},
      {"/v1/embeddings", R"("input":"a"})"},
      {"/api/generate", R"("prompt":"a"})"},
      {"/api/chat", R"("messages":[{"role":"user","content":"a"}]})"},
      {"/api/embed", R"("input":"a"})"}};
  for (const auto& [path, rest] : calls) {
    for (const char* name : {"tiny", "alias", "org/second"}) {
      ask(path, R"({"model":")" + std::string(name) + "\"," + rest);
      EXPECT_EQ(asked(), name == std::string("alias") ? "tiny" : name) << path;
    }
    ask(path, "{" + rest);
    EXPECT_EQ(asked(), "tiny") << path << " without a name";
  }
  ask("/api/generate", R"({"prompt":"a","model":"org/second:latest"})");
  EXPECT_EQ(asked(), "org/second");
  ask("/v1/completions", R"({"prompt":"a \"model\":\"x\"","model":"org\/second"})");
  EXPECT_EQ(asked(), "org/second");
}

TEST_F(ModelsTest, AnAnswerNamesItsModel) {
  const auto generation = std::get<std::shared_ptr<GrowingAnswer>>(
      ask("/v1/completions", R"({"model":"org/second","prompt":"a"})"));
  asked();
  EXPECT_EQ(json::parse(generation->take_body()).at("model"), "org/second");
}

TEST_F(ModelsTest, TextCallsGoToTheNamedModelToo) {
  for (const auto& [name, length] : std::map<std::string, int>{{"tiny", 100}, {"org/second", 80}}) {
    const HttpReply tokens = reply("/tokenize", R"({"prompt":"a","model":")" + name + R"("})");
    EXPECT_EQ(json::parse(tokens.body).at("max_model_len"), length) << tokens.body;
    const HttpReply about = reply("/api/show", R"({"name":")" + name + R"("})");
    EXPECT_NE(about.body.find(fmt::format("context_length\":{}", length)), std::string::npos)
        << about.body;
  }
}

TEST_F(ModelsTest, AnUnknownNameGetsAllNames) {
  for (const char* path : {"/v1/completions", "/v1/messages", "/tokenize", "/api/show"}) {
    const HttpReply refusal = reply(path, R"({"model":"third","prompt":"a"})");
    EXPECT_EQ(refusal.status, 404) << path;
    EXPECT_NE(refusal.body.find("third"), std::string::npos) << refusal.body;
    EXPECT_NE(refusal.body.find("tiny"), std::string::npos) << refusal.body;
    EXPECT_NE(refusal.body.find("org/second"), std::string::npos) << refusal.body;
  }
  EXPECT_EQ(error_of(reply("/v1/completions", R"({"model":"third"})")).at("code"),
            "model_not_found");
  EXPECT_EQ(reply("/v1/models/third", "", "GET").status, 404);
}

TEST_F(ModelsTest, ABodyThatIsNoJsonIsRefusedAsForOneModel) {
  for (const char* body : {"", "[1]", "{\"model\":7,\"prompt\":\"a\"}", "{\"model\":\"tiny\""}) {
    EXPECT_EQ(reply("/v1/completions", body).status, 400) << body;
  }
  EXPECT_EQ(asked(), "");
}

TEST_F(ModelsTest, ListsHaveAllModels) {
  const json::value list = shown("/v1/models");
  ASSERT_EQ(list.at("data").as_array().size(), 3U);
  EXPECT_EQ(list.at_pointer("/data/1/root"), "tiny");
  EXPECT_EQ(list.at_pointer("/data/2/id"), "org/second");
  EXPECT_EQ(list.at("last_id"), "org/second");
  EXPECT_EQ(shown("/v1/models/org%2Fsecond").at("max_model_len"), 80);
  EXPECT_EQ(shown("/api/tags").at_pointer("/models/2/name"), "org/second:latest");
  EXPECT_EQ(shown("/api/ps").at("models").as_array().size(), 2U);
  ask("/v1/completions", R"({"model":"org/second","prompt":"a"})");
  ask("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(shown("/load").at("server_load"), 2);
}

TEST_F(ModelsTest, MetricsAreOneExposition) {
  both.count({.method = "GET", .target = "/health"}, 200);
  std::istringstream lines(reply("/metrics", "", "GET").body);
  std::set<std::string> families;
  int samples = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(families.insert(line.substr(0, line.rfind(' '))).second) << line;
    }
    samples += line.starts_with("vllm:num_requests_running{") ? 1 : 0;
    samples += line.starts_with("http_requests_total{") ? 1 : 0;
  }
  EXPECT_EQ(samples, 3) << "a gauge of each model, and one counter";
  both.remove(*both.services().front());
  const std::string left = reply("/metrics", "", "GET").body;
  EXPECT_NE(left.find(R"(http_requests_total{handler="/health",method="GET",status="200"} 1)"),
            std::string::npos)
      << "the server counts on when its first model is removed";
}

TEST_F(ModelsTest, HealthChecksOfAServerThatIsNotReadyAreRoutine) {
  const auto routine = [&](const std::string& path, int status) {
    return both.routine({.method = "GET", .target = path}, status);
  };
  EXPECT_TRUE(routine("/health", 503));
  EXPECT_TRUE(routine("/ping", 503));
  EXPECT_TRUE(routine("/metrics", 200));
  EXPECT_FALSE(routine("/health", 405));
  EXPECT_FALSE(routine("/assets/nothing", 404));
  EXPECT_FALSE(routine("/v1/models", 503)) << "a client's call is refused";
  EXPECT_FALSE(routine("/v1/models", 200));
}

TEST_F(ModelsTest, AServerIsNotHealthyIfAllModelsAreOutOfService) {
  auto failed = std::make_shared<GroupsStatus>();
  failed->failed.push_back({.why = "has lost memory"});
  service.deliver({.groups = failed});
  EXPECT_EQ(reply("/health", "", "GET").status, 200) << "the other model answers";
  second.deliver({.groups = failed});
  EXPECT_EQ(reply("/health", "", "GET").status, 503);
  EXPECT_FALSE(both.in_service());
}

TEST_F(ModelsTest, AllModelsAreInOneState) {
  both.set_state(ServerState::kDraining);
  EXPECT_EQ(second.state(), ServerState::kDraining);
  EXPECT_TRUE(both.draining());
  EXPECT_EQ(reply("/health", "", "GET").status, 503);
  EXPECT_EQ(reply("/v1/completions", R"({"model":"org/second","prompt":"a"})").status, 503);
}

}  // namespace
}  // namespace protean

// Tests what becomes of requests for a model that sleeps.

#include "server/test_scenes/service_for_test.h"

namespace protean {
namespace {

struct SleepingModel : ServiceTest {
  int wanted = 0;  // times that the model was to be loaded

  SleepingModel() {
    service.on_wanted = [this] { ++wanted; };
  }
};

TEST_F(SleepingModel, WhatIsSentToASleepingModelWaitsUntilItIsAwake) {
  EXPECT_TRUE(service.may_sleep());
  service.fall_asleep();
  EXPECT_FALSE(service.may_sleep());
  const auto first = generate("/v1/completions", R"({"prompt":"a"})");
  const auto wish = service.ask_form(ReplicaId{0}, {});
  EXPECT_EQ(sent().size(), 0U);
  EXPECT_EQ(wanted, 0) << "the model is still being unloaded";
  service.fell_asleep();
  EXPECT_EQ(wanted, 1);
  const auto second = generate("/v1/completions", R"({"prompt":"b"})");
  service.woke({});
  EXPECT_EQ(wanted, 1);
  const std::vector<Event> events = sent();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_TRUE(std::holds_alternative<Arrival>(events[0].what));
  EXPECT_TRUE(std::holds_alternative<WantForm>(events[1].what));
  EXPECT_TRUE(std::holds_alternative<Arrival>(events[2].what));
  EXPECT_FALSE(service.may_sleep()) << "two requests and a wish wait";
}

TEST_F(SleepingModel, WhatOperatorsAskedForIsAskedForAgainWhenItWakes) {
  auto status = std::make_shared<FormStatus>(model().form);
  status->pinned = true;
  status->wanted.kv.blocks = 7;
  status->floor.most_lowered_layers = 1;
  service.deliver({.at_ns = now_ns, .form = status});
  service.fall_asleep();
  service.fell_asleep();
  generate("/v1/completions", R"({"prompt":"a"})");
  service.woke({});
  const std::vector<Event> events = sent();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(std::get<WantForm>(events[0].what).wish.floor, status->floor);
  const FormWish& form = std::get<WantForm>(events[1].what).wish;
  EXPECT_EQ(form.kv_blocks, 7);
  EXPECT_EQ(form.layers, status->wanted.layer_precision);
  EXPECT_TRUE(std::holds_alternative<Arrival>(events[2].what)) << "it comes after them";
}

TEST_F(SleepingModel, AModelThatDoesNotWakeFailsWhatWaitsForIt) {
  service.fall_asleep();
  service.fell_asleep();
  const auto answer = generate("/v1/completions", R"({"prompt":"a"})");
  const auto wish = service.ask_form(ReplicaId{0}, {});
  service.woke(make_error(ErrorCode::kExhausted, "no memory"));
  ASSERT_TRUE(answer->failure());
  EXPECT_EQ(answer->failure()->status, 503);
  EXPECT_NE(answer->failure()->message.find("no memory"), std::string::npos);
  ASSERT_TRUE(wish->reply);
  EXPECT_EQ(wish->reply->status, 503);
  EXPECT_EQ(service.outstanding(), 0);
  EXPECT_EQ(service.residence(), Residence::kAsleep);
  generate("/v1/completions", R"({"prompt":"b"})");
  service.woke({});
  EXPECT_EQ(arrivals().size(), 1U) << "what failed is not sent";
}

TEST_F(SleepingModel, RequestsThatWaitForItToWakeAreShownAsWaiting) {
  const auto waiting = [&] {
    const std::string line = "\nvllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} ";
    const std::string text = get("/metrics").body;
    const int counted = std::stoi(text.substr(text.find(line) + line.size()));
    EXPECT_EQ(service.fleet().sum().waiting, counted);
    return counted;
  };
  service.fall_asleep();
  const auto first = generate("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(waiting(), 1);
  service.fell_asleep();
  const auto both = generate("/v1/completions", R"({"prompt":["b","c"]})");
  EXPECT_EQ(waiting(), 3);
  both->abandon();
  EXPECT_EQ(waiting(), 1) << "their client has left";
  service.woke(make_error(ErrorCode::kExhausted, "no memory"));
  EXPECT_EQ(waiting(), 0);
}

TEST_F(SleepingModel, IsDueToSleepAfterItsLastRequest) {
  Service drowsy{{.max_outstanding = 4, .sleep_idle_ns = 5 * kNsPerS},
                 model(),
                 {.model_name = "tiny", .version = "9.9"},
                 environment(),
                 inbox};
  EXPECT_EQ(drowsy.sleep_due_ns(), std::nullopt) << "it is being loaded";
  drowsy.set_state(ServerState::kReady);
  EXPECT_EQ(drowsy.sleep_due_ns(), now_ns + 5 * kNsPerS);
  now_ns += kNsPerS;
  const auto wish = drowsy.ask_form(ReplicaId{0}, {});
  now_ns += kNsPerS;
  EXPECT_EQ(drowsy.sleep_due_ns(), now_ns + 5 * kNsPerS) << "it is in use";
  drowsy.deliver({.at_ns = now_ns,
                  .outputs = {WishAnswered{1, make_error(ErrorCode::kInvalidArgument, "no")}}});
  EXPECT_EQ(drowsy.sleep_due_ns(), now_ns + 4 * kNsPerS) << "it was used a second ago";
  drowsy.fall_asleep();
  EXPECT_EQ(drowsy.sleep_due_ns(), std::nullopt);
  EXPECT_EQ(service.sleep_due_ns(), std::nullopt) << "this one never sleeps";
}

TEST_F(SleepingModel, StaysAsLongAsTheLatestRequestAsks) {
  int changes = 0;
  service.on_stay_changed = [&] { ++changes; };
  const auto ask = [&](const std::string& keep_alive) {
    const auto answer =
        generate("/api/generate", R"({"prompt":"a","keep_alive":)" + keep_alive + "}");
    for (const Request& request : arrivals()) {
      deliver({finished(request.id, FinishReason::kStop, 0)});
    }
  };
  ask("3");
  EXPECT_EQ(service.sleep_due_ns(), now_ns + 3 * kNsPerS);
  ask("\"2m\"");
  EXPECT_EQ(service.sleep_due_ns(), now_ns + 120 * kNsPerS);
  ask("null");
  EXPECT_EQ(service.sleep_due_ns(), now_ns + 120 * kNsPerS) << "it says nothing";
  ask("-1");
  EXPECT_EQ(service.sleep_due_ns(), std::nullopt);
  EXPECT_EQ(changes, 3);
  EXPECT_EQ(refused("/api/generate", R"({"prompt":"a","keep_alive":"5"})").status, 400);
  const auto running = generate("/api/generate", R"({"prompt":"a","keep_alive":0})");
  EXPECT_GT(service.sleep_due_ns().value(), now_ns) << "it is in use";
  deliver({finished(arrivals().at(0).id, FinishReason::kStop, 0)});
  EXPECT_EQ(service.sleep_due_ns(), now_ns);
  service.fall_asleep();
  service.fell_asleep();
  service.wake();
  service.woke({});
  EXPECT_EQ(service.sleep_due_ns(), std::nullopt) << "a model that is loaded anew stays as it did";
}

TEST_F(SleepingModel, ACallThatLoadsWakesAModelThatIsAboutToSleep) {
  service.fall_asleep();
  EXPECT_EQ(std::get<HttpReply>(post("/api/generate", "{}")).status, 200);
  EXPECT_EQ(wanted, 0) << "the model is still being unloaded";
  service.fell_asleep();
  EXPECT_EQ(wanted, 1);
  service.woke({});
  std::get<HttpReply>(post("/api/generate", R"({"keep_alive":0})"));
  EXPECT_EQ(service.sleep_due_ns(), now_ns);
}

TEST_F(SleepingModel, ACallThatLoadsOrUnloadsAnotherModelChangesNothing) {
  for (const char* path : {"/api/generate", "/api/chat"}) {
    EXPECT_EQ(refused(path, R"({"model":"other","keep_alive":0})").status, 404);
    EXPECT_EQ(refused(path, R"({"model":5,"keep_alive":0})").status, 400);
    EXPECT_EQ(service.sleep_due_ns(), std::nullopt) << path << " never sleeps";
  }
  EXPECT_EQ(refused("/api/generate", R"({"model":"alias:latest","keep_alive":0})").status, 200);
  EXPECT_EQ(service.sleep_due_ns(), now_ns);
  service.fall_asleep();
  service.fell_asleep();
  EXPECT_EQ(refused("/api/chat", R"({"model":"other","messages":[]})").status, 404);
  EXPECT_EQ(wanted, 0);
}

}  // namespace
}  // namespace protean

// Tests how a model is replaced by itself in another configuration while it answers.

#include "server/residents.h"

#include <array>
#include <boost/json/serialize.hpp>
#include <memory>
#include <string>
#include <vector>

#include "server/test_scenes/residents_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

TEST_F(ResidentsTest, RequestsEndWhereTheyBeganAndNewOnesGoToTheOtherConfiguration) {
  Service& former = serving();
  begin();
  ASSERT_TRUE(std::holds_alternative<json::object>(want(R"({"intent":"min-memory"})")));
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-memory"});
  EXPECT_EQ(change(), "planning");
  residents.planned(0, {"TP 1 x PP 1, w4, KV int8", estimates});
  EXPECT_EQ(change(), "loading");
  begin();
  residents.replaced(0, make_host(next_inbox, "min-memory"), true);
  EXPECT_NE(&serving(), &former);
  EXPECT_EQ(change(), "draining");
  EXPECT_EQ(residents.intent_of(serving()).at("change").at("requests"), 2);
  EXPECT_EQ(residents.absent().size(), 0U);
  begin();
  EXPECT_EQ(serving().outstanding(), 1);
  EXPECT_EQ(loader.take(), Asked{});
  EXPECT_EQ(end_all(first_inbox, former), 2U);
  look();
  EXPECT_EQ(loader.take(), Asked{"remove 0"});
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(change("configuration"), "TP 1 x PP 1, w4, KV int8");
  EXPECT_EQ(residents.intent_of(serving()).at("intent"), "min-memory");
  EXPECT_EQ(end_all(next_inbox, serving()), 1U);
}

TEST_F(ResidentsTest, WithoutMemoryForBothRequestsWaitUntilTheFormerOnesHaveEnded) {
  Service& former = serving();
  begin();
  replace_without_memory();
  loader.take();
  begin();
  EXPECT_EQ(loader.take(), Asked{}) << "the former one has the memory";
  EXPECT_EQ(serving().residence(), Residence::kWaking);
  EXPECT_EQ(end_all(first_inbox, former), 1U);
  look();
  EXPECT_EQ(loader.take(), (Asked{"remove 0", "load 1"}));
  EXPECT_EQ(change(), "loading");
  EXPECT_EQ(end_all(next_inbox, serving()), 0U);
  residents.woke(1, {});
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(end_all(next_inbox, serving()), 1U);
}

TEST_F(ResidentsTest, RequestsOfAModelThatIsRemovedWhileItsFormerEnginesDrainEndToo) {
  Service& former = serving();
  begin();
  replace_without_memory();
  begin();
  Service& follower = serving();
  deploy_other();
  residents.remove(follower);
  loader.take();
  EXPECT_EQ(end_all(first_inbox, former), 1U);
  look_until_asked();
  EXPECT_EQ(loader.take(), (Asked{"remove 0", "load 1"}));
  residents.woke(1, {});
  EXPECT_EQ(end_all(next_inbox, follower), 1U);
  look_until_asked();
  EXPECT_EQ(loader.take(), Asked{"remove 1"});
}

TEST_F(ResidentsTest, WhatReplacesAnIdleModelIsLoadedWithoutARequest) {
  want(R"({"intent":"min-latency"})");
  residents.replaced(0, make_host(next_inbox), false);
  EXPECT_EQ(loader.take(), (Asked{"replace 0 min-latency", "remove 0", "load 1"}));
  residents.woke(1, make_error(ErrorCode::kExhausted, "no memory"));
  EXPECT_EQ(change(), "failed");
  EXPECT_EQ(change("error"), "no memory");
  begin();
  EXPECT_EQ(loader.take(), Asked{"load 1"}) << "the next request tries again";
}

TEST_F(ResidentsTest, AnIntentThatChangesNothingOrCannotBeKeptLeavesTheModelAsItIs) {
  Service& former = serving();
  want(R"({"intent":"min-cost"})");
  residents.planned(0, {"TP 1 x PP 1, bf16, KV bf16", estimates});
  residents.kept(0);
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(residents.intent_of(serving()).at("intent"), "min-cost");
  EXPECT_EQ(residents.plan_of(serving()).estimates, estimates);
  want(R"({"intent":"latency-slo=1ms"})");
  residents.not_replaced(0, {ErrorCode::kExhausted, "no configuration keeps it"});
  EXPECT_EQ(change(), "failed");
  EXPECT_EQ(change("error"), "no configuration keeps it");
  EXPECT_EQ(residents.intent_of(serving()).at("intent"), "min-cost");
  EXPECT_EQ(&serving(), &former);
  EXPECT_EQ(loader.take(), (Asked{"replace 0 min-cost", "replace 0 latency-slo=1ms"}));
}

TEST_F(ResidentsTest, AnEngineMorphsAndIsAskedAgainWhenItHasSlept) {
  begin();
  morph();
  EXPECT_EQ(change(), "morphing");
  EXPECT_EQ(change("way"), "in place");
  EXPECT_EQ(change("way_why"), "only weights change");
  show(Precision::kBf16, Precision::kW8);
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-memory"}) << "it has not been granted";
  serving().deliver({.outputs = {WishAnswered{asked_wish(), Morph{}}}});
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{}) << "the morph is under way";
  show(Precision::kW8, Precision::kW8);
  residents.look_at_loads();
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{"morphed 0"});
  residents.kept(0);
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(serving().outstanding(), 1) << "requests go on where they began";
  Service& service = serving();
  EXPECT_EQ(end_all(first_inbox, service), 1U);
  ASSERT_TRUE(residents.put_to_sleep(service));
  residents.fell_asleep(0);
  service.wake();
  residents.woke(0, {});
  EXPECT_GT(asked_wish(), 0U) << "the form may have changed after the load began";
}

TEST_F(ResidentsTest, AModelThatSleepsChangesWithoutWakingAndWakesInTheNewForm) {
  FormStatus steered = serving().model().form;
  steered.pinned = true;
  serving().deliver({.form = std::make_shared<FormStatus>(steered)});
  ASSERT_TRUE(residents.put_to_sleep(serving()));
  residents.fell_asleep(0);
  morph();
  EXPECT_EQ(loader.take(), (Asked{"unload 0", "replace 0 min-memory", "morphed 0"}));
  residents.kept(0);
  EXPECT_EQ(serving().residence(), Residence::kAsleep);
  serving().wake();
  residents.woke(0, {});
  const std::vector<Event> asked = first_inbox.pop_all();
  ASSERT_EQ(asked.size(), 1U) << "the operator's form has ended";
  EXPECT_EQ(std::get<WantForm>(asked.front().what).wish.rest_pages, 100);
}

TEST_F(ResidentsTest, OtherEnginesTakeRequestsOverAndTheModelIsWhatTheyServe) {
  Service& service = serving();
  begin();
  want(R"({"intent":"min-latency"})");
  hand_over();
  EXPECT_EQ(change(), "loading");
  EXPECT_EQ(change("way"), "handed over");
  residents.succeeded(0, on_two_devices());
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(residents.intent_of(serving()).at("intent"), "min-latency");
  EXPECT_EQ(&serving(), &service);
  EXPECT_EQ(service.model().max_model_len, 50);
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-latency"}) << "there is nothing to remove";
  EXPECT_EQ(end_all(first_inbox, service), 1U) << "its request goes on";
}

TEST_F(ResidentsTest, AModelThatSleepsWakesInTheConfigurationThatSucceedsIt) {
  morph();
  serving().deliver({.outputs = {WishAnswered{asked_wish(), Morph{}}}});
  residents.kept(0);
  ASSERT_TRUE(residents.put_to_sleep(serving()));
  residents.fell_asleep(0);
  want(R"({"intent":"min-latency"})");
  hand_over();
  residents.succeeded(0, on_two_devices());
  EXPECT_EQ(change(), "done");
  EXPECT_EQ(serving().fleet().form(ReplicaId{0}).form, on_two_devices().form.form);
  EXPECT_EQ(serving().residence(), Residence::kAsleep);
  serving().wake();
  residents.woke(0, {});
  EXPECT_EQ(asked_wish(), 0U) << "what it was to rest in belonged to the former configuration";
}

TEST_F(ResidentsTest, AMorphThatIsRefusedOrFailsIsLeftToTheLoader) {
  morph();
  serving().deliver(
      {.outputs = {WishAnswered{asked_wish(), make_error(ErrorCode::kExhausted, "no room")}}});
  EXPECT_EQ(loader.take(), (Asked{"replace 0 min-memory", "not morphed 0"}));
  EXPECT_EQ(loader.why, "no room");
  residents.changes(0, {std::nullopt, "no room"});
  EXPECT_EQ(change(), "loading");
  EXPECT_EQ(change("way"), "a second copy");
  residents.not_replaced(0, {ErrorCode::kExhausted, "no memory"});
  morph();
  serving().deliver({.outputs = {WishAnswered{asked_wish(), Morph{}}}});
  show(Precision::kBf16, Precision::kBf16);
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), (Asked{"replace 0 min-memory", "not morphed 0"}));
}

TEST_F(ResidentsTest, RefusesUnknownIntentsAndASecondChangeAtATime) {
  for (const char* bad : {"", "[]", R"({"intent":3})", R"({"intent":"min-latancy"})",
                          R"({"intent":"min-cost","more":1})", R"({"intent":"min-cost","batch":0})",
                          R"({"intent":"min-cost","batch":4097})",
                          R"({"intent":"min-cost","output_tokens":"many"})"}) {
    const auto refused = want(bad);
    ASSERT_TRUE(std::holds_alternative<ApiError>(refused)) << bad;
    EXPECT_EQ(std::get<ApiError>(refused).status, 400) << bad;
  }
  EXPECT_TRUE(residents.intent_of(serving()).at("intent").is_null());
  EXPECT_EQ(residents.plan_of(serving()).estimates, nullptr);
  EXPECT_FALSE(residents.intent_of(serving()).contains("change"));
  want(R"({"intent":"min-cost"})");
  EXPECT_EQ(std::get<ApiError>(want(R"({"intent":"min-memory"})")).status, 409);
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-cost"});
}

TEST_F(ResidentsTest, AModelForWhichNoIntentCanChooseRefusesAtOnce) {
  ServedModel other = model();
  other.names = {"other"};
  HostedModel hosted{other, {}, other_inbox, nullptr};
  hosted.no_intent = "an intent chooses for one replica";
  residents.deployed(std::make_shared<Host>(std::move(hosted), "9.9", environment(),
                                            [](std::shared_ptr<Host>, OutputBatch) {}));
  const auto refused =
      residents.want_intent(*residents.models().find("other"), R"({"intent":"min-cost"})");
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  EXPECT_EQ(std::get<ApiError>(refused).status, 409);
  EXPECT_EQ(std::get<ApiError>(refused).message, "an intent chooses for one replica");
  EXPECT_EQ(loader.take(), Asked{});
}

TEST_F(ResidentsTest, EstimatesAreForTheRequestsOfTheModelUnlessTheWishSaysOtherwise) {
  want(R"({"intent":"min-cost"})");
  EXPECT_EQ(loader.wanted, (std::array{1, 0, 0})) << "there were no requests";
  residents.kept(0);
  begin();
  serving().deliver({.observation = {.running = 3,
                                     .prompt_tokens_total = 500,
                                     .output_tokens_total = 90,
                                     .accepted_total = 10}});
  want(R"({"intent":"min-cost"})");
  EXPECT_EQ(loader.wanted, (std::array{3, 50, 9}));
  residents.kept(0);
  serving().deliver({.observation = {.running = 1,
                                     .waiting = 49,
                                     .prompt_tokens_total = 201,
                                     .output_tokens_total = 60,
                                     .accepted_total = 50}});
  want(R"({"intent":"min-cost"})");
  EXPECT_EQ(loader.wanted, (std::array{1, 201, 60})) << "those that wait have no tokens yet";
  residents.kept(0);
  want(R"({"intent":"min-cost","batch":8,"output_tokens":200})");
  EXPECT_EQ(loader.wanted, (std::array{8, 201, 200}));
  EXPECT_EQ(residents.intent_of(serving()).at("change").at("output_tokens"), 200);
}

TEST_F(ResidentsTest, ABoundIsForNineOfTenAnswersAndTheRestForTheirMean) {
  for (int answer = 1; answer <= 20; ++answer) {
    begin();
    first_inbox.push({});  // pop_all() waits for an event
    for (const Event& event : first_inbox.pop_all()) {
      if (const Arrival* arrival = std::get_if<Arrival>(&event.what)) {
        const int tokens = answer == 20 ? 500 : answer;
        serving().deliver(
            {.outputs = {finished(arrival->request.id, FinishReason::kLength, tokens)},
             .observation = {.output_tokens_total = 690, .accepted_total = 20}});
      }
    }
    answers.clear();
  }
  want(R"({"intent":"min-cost"})");
  EXPECT_EQ(loader.wanted, (std::array{1, 3, 34}));
  EXPECT_FALSE(
      residents.intent_of(serving()).at("change").as_object().contains("output_tokens_quantile"));
  residents.kept(0);
  for (const char* intent : {"latency-slo=2s", "cost-slo=3"}) {
    want(json::serialize(json::object{{"intent", intent}}));
    EXPECT_EQ(loader.wanted, (std::array{1, 3, 18})) << intent;
    EXPECT_EQ(residents.intent_of(serving()).at("change").at("output_tokens_quantile"), 0.9);
    residents.kept(0);
  }
  residents.look_at_loads();
  EXPECT_EQ(loader.output_tokens, std::vector{18}) << "moves are for the intent that serves";
  want(R"({"intent":"latency-slo=2s","output_tokens":200})");
  EXPECT_EQ(loader.wanted, (std::array{1, 3, 200}));
}

TEST_F(ResidentsTest, AModelMovesByTheLoadsInTheWayOfAnIntent) {
  deploy_other();
  begin();
  residents.look_at_loads();
  EXPECT_EQ(loader.running, (std::vector{1, 0}));
  EXPECT_EQ(loader.take(), Asked{});
  const IntentWish wish{.intent = "min-cost",
                        .batch = 3,
                        .move = PlannedMove{.devices = {1},
                                            .stage_layers = {16},
                                            .saves_s = 40,
                                            .costs_s = 2,
                                            .why = "another model is busy"}};
  loader.move = ModelLoader::ModelToMove{.model = 0, .wish = wish};
  residents.look_at_loads();
  EXPECT_EQ(loader.take(), Asked{"replace 0 min-cost"});
  EXPECT_EQ(change("why"), "another model is busy");
  const json::object shown = residents.intent_of(serving());
  EXPECT_EQ(shown.at("moves"), 0) << "it has not moved yet";
  EXPECT_EQ(json::serialize(shown.at("change").at("devices")), "[1]");
  EXPECT_EQ(shown.at("change").at("saves_s"), 40.0);
  // Loads count during the change too, but nothing else moves.
  residents.look_at_loads();
  EXPECT_EQ(loader.running, (std::vector{1, 0}));
  EXPECT_EQ(loader.may_move, (std::vector{false, false}));
  residents.planned(0, {"TP 1 x PP 1, w4, KV int8", estimates});
  Service& former = serving();
  residents.replaced(0, make_host(next_inbox, "min-cost"), true);
  const std::string metrics = Service::metrics_text({&serving()});
  EXPECT_NE(metrics.find("protean:model_moves_total{engine=\"0\",model_name=\"tiny\"} 1"),
            std::string::npos)
      << metrics;
  EXPECT_EQ(residents.intent_of(serving()).at("moves"), 1);
  EXPECT_EQ(end_all(first_inbox, former), 1U);
  look_until_asked();
  EXPECT_EQ(loader.take(), Asked{"remove 0"});
  residents.look_at_loads();
  EXPECT_EQ(loader.running, (std::vector{0, 0}));
  EXPECT_EQ(loader.may_move, (std::vector{true, true}));
}

TEST_F(ResidentsTest, ModelsThatSleepOrThatAnOperatorSteersMayNotMove) {
  deploy_other();
  residents.look_at_loads();
  EXPECT_EQ(loader.may_move, (std::vector{true, true}));
  FormStatus steered = serving().model().form;
  steered.pinned = true;
  serving().deliver({.form = std::make_shared<FormStatus>(steered)});
  residents.look_at_loads();
  EXPECT_EQ(loader.may_move, (std::vector{false, true}));
  ASSERT_TRUE(residents.put_to_sleep(*residents.models().services()[1]));
  residents.look_at_loads();
  EXPECT_EQ(loader.may_move, (std::vector{false, false}));
}

TEST_F(ResidentsTest, AModelIsProfiledOneJobAtATime) {
  EXPECT_TRUE(residents.profile_of(serving()).at("state").is_null());
  EXPECT_EQ(std::get<json::object>(residents.profile(serving())).at("state"), "waiting");
  EXPECT_EQ(loader.take(), Asked{"profile 0"});
  EXPECT_EQ(std::get<ApiError>(residents.profile(serving())).status, 409);
  residents.profiling(
      0, {.fingerprint = 1, .fingerprints = 2, .steps = 3, .of_steps = 40, .discarded = 5});
  json::object shown = residents.profile_of(serving());
  EXPECT_EQ(shown.at("state"), "profiling");
  EXPECT_EQ(shown.at("fingerprints"), 2);
  EXPECT_EQ(shown.at("steps"), 3);
  EXPECT_EQ(shown.at("discarded"), 5);
  residents.look_at_loads();
  EXPECT_EQ(loader.may_move, std::vector{false}) << "a move would wait for it";
  residents.profiled(0, make_error(ErrorCode::kUnavailable, "the disk is full"));
  shown = residents.profile_of(serving());
  EXPECT_EQ(shown.at("state"), "failed");
  EXPECT_EQ(shown.at("error"), "the disk is full");
  EXPECT_EQ(std::get<json::object>(residents.profile(serving())).at("steps"), 0);
  deploy_other();
  EXPECT_TRUE(std::holds_alternative<std::string>(residents.remove(serving())));
  residents.profiled(0, {});  // of a model that is gone
}

TEST_F(ResidentsTest, AModelThatIsRegisteredSleepsUntilItIsWanted) {
  const auto refused = residents.deploy(R"({"name":"other","model":"m","load":"no"})");
  EXPECT_EQ(std::get<ApiError>(refused).param, "load");
  residents.deploy(R"({"name":"other","model":"m","load":false})");
  EXPECT_EQ(loader.take(), Asked{"register other"});
  EXPECT_FALSE(loader.fields_of_deploy.contains("load"));
  deploy_other(false);
  EXPECT_EQ(loader.take(), Asked{"unload 1"});
  residents.fell_asleep(1);
  Service& other = *residents.models().find("other");
  EXPECT_EQ(other.residence(), Residence::kAsleep);
  EXPECT_EQ(residents.load_s(other), 0) << "it is not known yet";
  other.wake();
  EXPECT_EQ(loader.take(), Asked{"load 1"});
  residents.loaded(1, 0.25);
  residents.woke(1, {});
  EXPECT_EQ(other.residence(), Residence::kAwake);
  EXPECT_EQ(residents.load_s(other), 0.25);
  residents.remove(other);
  look_until_asked();
  residents.loaded(1, 0.5);  // of a model that is gone
}

TEST_F(ResidentsTest, DeploymentsAndChangesShowTheirProgress) {
  residents.deploy(R"({"name":"other","model":"m"})");
  const auto deployment = [&] { return residents.absent().at(0).as_object(); };
  EXPECT_FALSE(deployment().contains("progress"));
  residents.deploying("other", {.steps = 3, .of_steps = 40});
  EXPECT_EQ(json::serialize(deployment().at("progress")), R"({"steps":3,"of_steps":40})");
  residents.deploying("other", {.loaded = 0.5});
  EXPECT_EQ(json::serialize(deployment().at("progress")), R"({"loaded":5E-1})");
  residents.deploying("nobody", {.loaded = 0.5});

  want(R"({"intent":"min-cost"})");
  const auto shown = [&] { return residents.intent_of(serving()).at("change").as_object(); };
  residents.changing(0, {.steps = 7, .of_steps = 40});
  EXPECT_EQ(shown().at("progress").at("steps"), 7);
  residents.planned(0, {"TP 1 x PP 1, w4, KV int8", estimates});
  EXPECT_FALSE(shown().contains("progress")) << "loading has not begun";
  residents.changing(0, {.loaded = 0.75});
  EXPECT_EQ(shown().at("progress").at("loaded"), 0.75);
  residents.profile(serving());
  residents.profiling(0, {.fingerprint = 1, .fingerprints = 2, .steps = 3, .of_steps = 40});
  const json::array jobs = residents.jobs_of(serving());
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(
      json::serialize(jobs.at(0)),
      R"({"job":"intent","intent":"min-cost","state":"loading","progress":{"loaded":7.5E-1}})");
  EXPECT_EQ(json::serialize(jobs.at(1)),
            R"({"job":"profile","state":"profiling","progress":)"
            R"({"steps":3,"of_steps":40,"fingerprint":1,"fingerprints":2}})");
  residents.profiled(0, {});
  residents.kept(0);
  EXPECT_EQ(residents.jobs_of(serving()).size(), 0U) << "they have ended";
  EXPECT_FALSE(shown().contains("progress"));
  residents.changing(0, {.loaded = 1});  // of a change that has ended
}

struct KnownShare final : TimeShare {
  explicit KnownShare(int begins_with) : now(begins_with) {}
  int priority() const override { return now; }
  void set_priority(int priority) override { now = priority; }
  double step_seconds() const override { return 0; }
  int now;
};

TEST_F(ResidentsTest, AnotherConfigurationHasThePriorityThatTheModelHasByThen) {
  serving().share = std::make_shared<KnownShare>(7);
  want(R"({"intent":"min-cost"})");
  const auto next = make_host(next_inbox);
  next->service.share = std::make_shared<KnownShare>(1);
  residents.replaced(0, next, true);
  ASSERT_EQ(&serving(), &next->service);
  EXPECT_EQ(serving().share->priority(), 7);
}

TEST_F(ResidentsTest, AModelThatIsRemovedMeanwhileIsNotReplaced) {
  deploy_other();
  Service& first = serving();
  want(R"({"intent":"min-cost"})");
  residents.remove(first);
  EXPECT_EQ(loader.take(), (Asked{"replace 0 min-cost", "take back replace 0", "remove 0"}));
  residents.replaced(0, make_host(next_inbox), true);
  EXPECT_EQ(loader.take(), Asked{"remove 2"});
  ASSERT_EQ(residents.models().services().size(), 1U);
  EXPECT_EQ(serving().model().names.front(), "other");
}

}  // namespace
}  // namespace protean

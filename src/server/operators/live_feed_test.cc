// Tests what operators that watch are told, and what a recording holds.

#include "server/operators/live_feed.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace protean {
namespace {

namespace json = boost::json;

using Events = std::vector<std::pair<std::string, json::value>>;

Events feed_events(GrowingAnswer& stream) {
  Events events;
  std::istringstream text(stream.take_events());
  for (std::string name, data; std::getline(text, name) && std::getline(text, data);) {
    events.emplace_back(name.substr(std::string("event: ").size()),
                        json::parse(data.substr(std::string("data: ").size())));
    std::getline(text, data);  // the empty line
  }
  return events;
}

std::vector<json::value> lines_of(const std::string& recording) {
  std::vector<json::value> lines;
  std::istringstream text(recording);
  for (std::string line; std::getline(text, line);) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

struct LiveFeedTest : testing::Test {
  LiveFeedTest() {
    status.form.layer_precision.resize(4);
    feed.form(kFirst, status, 0);
    feed.state({{"form", {{"text", "bf16"}, {"kv_blocks", 10}}}}, 0);
  }
  void step(TimeNs at_ns, int running, std::int64_t tokens) {
    seen.running = running;
    seen.output_tokens_total += tokens;
    feed.engine(kFirst, seen, at_ns);
  }
  void lower(TimeNs at_ns) {
    status.form.layer_precision[0].mlp = Precision::kW4;
    feed.form(kFirst, status, at_ns);
    feed.state({{"form", {{"text", "mixed"}, {"kv_blocks", 10}}}}, at_ns);
  }

  static constexpr TimeNs kUnixNs = 1000 * kNsPerS;
  static constexpr ReplicaId kFirst{0};
  LiveFeed feed{kUnixNs, 1};
  FormStatus status;
  Observation seen;
};

TEST_F(LiveFeedTest, TellsAllOnceAndThenOnlyWhatChanges) {
  const auto stream = feed.watch(0, false);
  const Events hello = feed_events(*stream);
  ASSERT_EQ(hello.size(), 1U);
  EXPECT_EQ(hello[0].first, "hello");
  EXPECT_EQ(hello[0].second.at_pointer("/state/form/text"), "bf16");
  EXPECT_EQ(hello[0].second.at_pointer("/now"), 1000.0);
  feed.state({{"form", {{"text", "bf16"}, {"kv_blocks", 10}}}}, 1);
  EXPECT_TRUE(feed_events(*stream).empty()) << "nothing has changed";

  lower(2);
  const Events changes = feed_events(*stream);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].first, "state");
  EXPECT_EQ(changes[0].second, json::parse(R"({"form":{"text":"mixed"}})"));
  feed.state({}, 3);
  EXPECT_EQ(feed_events(*stream).at(0).second, json::parse(R"({"form":null})"));
}

TEST_F(LiveFeedTest, AWatcherThatComesLateSeesTheSameStateAsOneThatIsThere) {
  const auto stream = feed.watch(0, false);
  feed_events(*stream);
  feed.state({{"packing", {{"done", 1}, {"failure", nullptr}}}, {"list", {nullptr, 1}}}, 1);
  EXPECT_EQ(feed_events(*stream).at(0).second,
            json::parse(R"({"packing":{"done":1},"list":[null,1],"form":null})"));
  feed.state({{"packing", nullptr}, {"list", {nullptr, 1}}}, 2);
  EXPECT_EQ(feed_events(*stream).at(0).second, json::parse(R"({"packing":null})"));
  const json::value late = feed_events(*feed.watch(2, false)).at(0).second;
  EXPECT_EQ(late.at("state"), json::parse(R"({"list":[null,1]})"));
}

TEST_F(LiveFeedTest, TellsEachMorphStepWhenItIsNewAndWhenItChanges) {
  const auto stream = feed.watch(0, false);
  feed_events(*stream);
  const auto told = [&](std::vector<MorphRecord> records) {
    MorphHistory history = *status.history;
    for (MorphRecord& record : records) {
      std::erase_if(history, [&](const auto& old) { return old->id == record.id; });
      history.push_back(std::make_shared<const MorphRecord>(record));
    }
    status.history = std::make_shared<const MorphHistory>(history);
    feed.form(kFirst, status, 5 * kNsPerS);
    return feed_events(*stream);
  };
  const MorphRecord first{.id = 1, .step = ResizeKv{5}, .reason = "asked for", .asked_ns = kNsPerS};
  const MorphRecord second{
      .id = 2, .step = ResizeKv{9}, .reason = "asked for", .asked_ns = kNsPerS};
  const Events begun = told({first, second});
  ASSERT_EQ(begun.size(), 1U);
  EXPECT_EQ(begun[0].first, "morphs");
  EXPECT_EQ(begun[0].second.as_array().size(), 2U);
  EXPECT_EQ(begun[0].second.at_pointer("/0/asked_at"), 1001.0);
  EXPECT_EQ(begun[0].second.at_pointer("/0/replica"), 0);
  MorphRecord done = second;
  done.done_ns = 3 * kNsPerS;
  const Events ended = told({done});
  ASSERT_EQ(ended.size(), 1U);
  ASSERT_EQ(ended[0].second.as_array().size(), 1U) << "the first step is as it was";
  EXPECT_EQ(ended[0].second.at_pointer("/0/id"), 2);
  EXPECT_EQ(ended[0].second.at_pointer("/0/done_after_s"), 2.0);
}

TEST_F(LiveFeedTest, ClosesSlotsAsTimePassesAndIsSilentWhileNothingRuns) {
  const auto stream = feed.watch(0, false);
  feed_events(*stream);
  EXPECT_FALSE(feed.due_ns());
  step(kNsPerMs, 3, 8);
  feed.first_token(20 * kNsPerMs, kNsPerMs);
  step(2 * kNsPerMs, 1, 4);
  EXPECT_TRUE(feed_events(*stream).empty());
  ASSERT_EQ(feed.due_ns(), kNsPerS / 2);
  feed.pass(kNsPerS / 2);
  const Events closed = feed_events(*stream);
  ASSERT_EQ(closed.size(), 1U);
  EXPECT_EQ(closed[0].second.at_pointer("/range"), "minute");
  EXPECT_EQ(closed[0].second.at_pointer("/point/running"), 3) << "the most at once";
  EXPECT_EQ(closed[0].second.at_pointer("/point/tokens/bf16"), 12);
  EXPECT_EQ(closed[0].second.at_pointer("/point/layers/bf16"), 4);
  EXPECT_NEAR(closed[0].second.at_pointer("/point/ttft_s/1").to_number<double>(), 0.02, 0.002);
  EXPECT_FALSE(feed.due_ns());
  feed.pass(100 * kNsPerS);
  EXPECT_TRUE(feed_events(*stream).empty());

  lower(100 * kNsPerS);
  feed_events(*stream);
  step(100 * kNsPerS, 1, 8);
  feed.pass(101 * kNsPerS);
  const Events points = feed_events(*stream);
  ASSERT_EQ(points.size(), 3U) << "and the slots of the hour and of all time that ended";
  EXPECT_EQ(points[0].second.at_pointer("/point/tokens/w4"), 1) << "an eighth of the layers";
  EXPECT_EQ(points[0].second.at_pointer("/point/tokens/bf16"), 7);
  EXPECT_EQ(points[1].second.at_pointer("/range"), "hour");
  EXPECT_EQ(points[1].second.at_pointer("/point/tokens/bf16"), 12);
}

// The engine of a group has a history of its own, and the one before it goes on afterwards.
TEST_F(LiveFeedTest, TellsAStepOnceAlthoughAnotherEngineServedMeanwhile) {
  const auto stream = feed.watch(0, false);
  feed_events(*stream);
  const auto step_of = [](std::uint64_t id) {
    return std::make_shared<const MorphRecord>(
        MorphRecord{.id = id, .step = ResizeKv{5}, .reason = "asked for", .asked_ns = kNsPerS});
  };
  const auto own = std::make_shared<const MorphHistory>(1, step_of(1));
  for (const auto& history :
       {own, std::make_shared<const MorphHistory>(1, step_of(1 << 20)), own}) {
    status.history = history;
    feed.form(kFirst, status, 2 * kNsPerS);
  }
  EXPECT_EQ(feed_events(*stream).size(), 2U);
  EXPECT_EQ(feed_events(*feed.watch(0, true)).at(0).second.at("morphs").as_array().size(), 2U);
}

TEST(LiveFeed, CountsTokensOfEachReplicaAtItsOwnPrecision) {
  LiveFeed feed(0, 2);
  FormStatus status;
  status.form.layer_precision.resize(4);
  feed.form(ReplicaId{0}, status, 0);
  status.form.layer_precision.assign(4, {Precision::kW4, Precision::kW4});
  feed.form(ReplicaId{1}, status, 0);
  const auto point_after = [&](TimeNs at_ns) {
    const auto stream = feed.watch(at_ns, false);
    feed_events(*stream);
    feed.pass(at_ns + kNsPerS);
    return feed_events(*stream).at(0).second.at("point");
  };
  Observation first{.running = 2, .kv_blocks = 10, .output_tokens_total = 30};
  Observation second{.running = 3, .waiting = 1, .kv_blocks = 20, .output_tokens_total = 5};
  feed.engine(ReplicaId{0}, first, kNsPerMs);
  feed.engine(ReplicaId{1}, second, 2 * kNsPerMs);
  const json::value both = point_after(3 * kNsPerMs);
  EXPECT_EQ(both.at("tokens"), json::parse(R"({"bf16": 30, "w4": 5})"));
  EXPECT_EQ(both.at("layers"), json::parse(R"({"bf16": 2, "w4": 2})")) << "the replicas' mean";
  EXPECT_EQ(both.at("running"), 5);
  EXPECT_EQ(both.at("kv_blocks"), 30);
  EXPECT_EQ(both.at("replicas"), json::parse("[[2,0,0,10,30],[3,1,0,20,5]]"));

  // From here on, the first replica serves for both, as a group.
  feed.serving({ReplicaId{0}, ReplicaId{0}});
  first.kv_blocks = 40;
  first.output_tokens_total = 37;
  feed.engine(ReplicaId{0}, first, 2 * kNsPerS);
  const json::value group = point_after(2 * kNsPerS);
  EXPECT_EQ(group.at("tokens"), json::parse(R"({"bf16": 7})"));
  EXPECT_EQ(group.at("layers"), json::parse(R"({"bf16": 4})"));
  EXPECT_EQ(group.at("running"), 2);
  EXPECT_EQ(group.at("kv_blocks"), 40);
  EXPECT_EQ(group.at("replicas"), json::parse("[[2,0,0,40,7],null]"));
}

TEST_F(LiveFeedTest, JoinsSlotsOfAllTimeInPairsSoThatTheyStayFew) {
  const auto stream = feed.watch(0, false);
  feed_events(*stream);
  bool told = false;
  for (int second = 0; second < 1000; ++second) {
    step(second * kNsPerS, second % 7, 1);
    for (const auto& [name, data] : feed_events(*stream)) {
      if (name == "range") {
        told = true;
        EXPECT_EQ(data.at_pointer("/range"), "all");
        EXPECT_LE(data.at_pointer("/points").as_array().size(), 360U);
      }
    }
  }
  EXPECT_TRUE(told);
  const auto all =
      feed_events(*feed.watch(1000 * kNsPerS, true)).at(0).second.at_pointer("/ranges/all");
  EXPECT_EQ(all.at("step_s"), 4);
  double tokens = 0;
  for (const json::value& point : all.at("points").as_array()) {
    tokens += point.at_pointer("/tokens/bf16").to_number<double>();
  }
  EXPECT_NEAR(tokens, 1000, 8) << "all but the open slot's";
  EXPECT_EQ(all.at_pointer("/points/0/t"), 1000.0);
}

TEST_F(LiveFeedTest, EndsStreamsAndForgetsWatchersThatLeft) {
  auto stays = feed.watch(0, false);
  auto leaves = feed.watch(0, false);
  int changes = 0;
  leaves->on_change = [&] { ++changes; };
  leaves->abandon();
  lower(1);
  EXPECT_EQ(changes, 0);
  leaves.reset();
  feed.state({}, 2);
  EXPECT_EQ(feed_events(*stays).size(), 3U);
  EXPECT_FALSE(stays->done());
  feed.end();
  EXPECT_TRUE(stays->done());
  EXPECT_TRUE(feed.watch(3, true)->done());
}

TEST_F(LiveFeedTest, RecordsFromTheStateAtItsBeginning) {
  step(kNsPerMs, 1, 1);
  lower(60 * kNsPerS);
  EndedRequest ended{.reason = "stop", .usage = {.prompt_tokens = 5, .output_tokens = 9}};
  ended.received_ns = 61 * kNsPerS;
  ended.times = {.first_token_ns = 62 * kNsPerS, .finished_ns = 63 * kNsPerS};
  feed.finished(ended);
  const auto whole = lines_of(feed.recording(0, 70 * kNsPerS));
  ASSERT_EQ(whole.size(), 3U);
  EXPECT_EQ(whole[0].at("protean_recording"), 1);
  EXPECT_EQ(whole[0].at_pointer("/state/form/text"), "bf16");
  EXPECT_EQ(whole[1].at("event"), "state");
  EXPECT_EQ(whole[2].at("event"), "request");
  EXPECT_EQ(whole[2].at_pointer("/data/arrived"), 1061.0);
  EXPECT_EQ(whole[2].at_pointer("/data/ttft_s"), 1);
  const auto end = lines_of(feed.recording(61 * kNsPerS, 70 * kNsPerS));
  ASSERT_EQ(end.size(), 2U);
  EXPECT_EQ(end[0].at_pointer("/state/form/text"), "mixed") << "the state when it begins";
}

TEST_F(LiveFeedTest, KeepsAnHourAndKnowsTheStateBeforeIt) {
  lower(kNsPerS);
  feed.state({{"form", {{"text", "back"}}}}, 2 * 3600 * kNsPerS);
  const auto lines = lines_of(feed.recording(0, 2 * 3600 * kNsPerS));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at_pointer("/state/form/text"), "mixed");
}

TEST(DurationCounts, AddUpAndTellQuantilesWithinATenth) {
  DurationCounts some;
  DurationCounts more;
  for (int i = 1; i <= 100; ++i) {
    (i % 2 == 0 ? some : more).add(i * kNsPerMs);
  }
  some.add(more);
  EXPECT_NEAR(static_cast<double>(some.quantile(0.5)), 50e6, 5e6);
  EXPECT_NEAR(static_cast<double>(some.quantile(0.95)), 95e6, 9e6);
  DurationCounts odd;
  odd.add(0);
  odd.add(-5);
  odd.add(1000000 * kNsPerS);
  EXPECT_LT(odd.quantile(0.1), 11000);
  EXPECT_GT(odd.quantile(1), 1000 * kNsPerS);
}

}  // namespace
}  // namespace protean

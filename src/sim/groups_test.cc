// Tests groups of replicas in virtual time: the production fleet joins and parts simulated devices.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "fleet/grouped_devices_for_test.h"
#include "sim/report_text_for_test.h"
#include "sim/simulation.h"

namespace protean {
namespace {

constexpr std::int64_t kBlocks = 40;  // of each replica: 160 tokens

struct GroupsScene {
  int replicas = 4;
  ScalePolicy scale = ScalePolicy::kOff;
  DropPolicy drop = DropPolicy::kOff;
};

SimulationConfig grouped_config(const GroupsScene& scene) {
  const Form form = group_form(kBlocks);
  PageBudget budget{.page_bytes = 4096};
  budget.pages = form_pages(group_spec(), form, budget.page_bytes);
  const StepCost alone{.fixed_us = 100,
                       .context_token_us = 0.1,
                       .layers = {{{.step_us = 1000, .token_us = 20, .more_token_us = 20}}}};
  const std::vector<Precision> layers = {Precision::kF32};
  SimulationConfig config{.engine = group_engine(form, budget, true),
                          .replicas = scene.replicas,
                          .dispatch = {RouterPolicy::kLeastLoaded},
                          .step_cost = alone,
                          .seed = 5,
                          .morph_cost = {.copy_bytes_per_us = 100, .fetch_bytes_per_us = 100}};
  config.engine.step_precision.layers[index_of(Precision::kF32)] = 1;
  config.group_cost = group_cost(alone, group_spec(), layers, {.us = 5, .bytes_per_us = 1000});
  config.groups = GroupConfig{
      .spec = group_spec(),
      .budget = budget,
      .form = form,
      .wide_engine = [budget](const Form& wide) { return group_engine(wide, budget, true); },
      .steps_at_once = 2,
      .scale = scene.scale,
      .drop = scene.drop};
  return config;
}

std::vector<TraceRequest> poisson(std::size_t count, double gap_ms, int prompt, int output) {
  std::mt19937 random(11);
  std::vector<TraceRequest> trace(count);
  double at_ms = 0;
  for (TraceRequest& request : trace) {
    at_ms += -std::log((static_cast<double>(random()) + 0.5) / 4294967296.0) * gap_ms;
    request = {static_cast<TimeNs>(at_ms * kNsPerMs),
               1 + static_cast<int>(random() % static_cast<unsigned>(2 * prompt)),
               1 + static_cast<int>(random() % static_cast<unsigned>(2 * output))};
  }
  return trace;
}

// Every request has ended with all its tokens, no block is in use, and the run repeats its bytes.
void expect_nothing_lost(const SimulationConfig& config, const std::vector<TraceRequest>& trace,
                         const SimulationReport& report) {
  EXPECT_EQ(report.finished.size(), trace.size());
  for (const FinishedRequest& request : report.finished) {
    EXPECT_EQ(request.reason, FinishReason::kLength) << "request " << request.request;
    EXPECT_EQ(request.usage.output_tokens, trace[request.request - 1].output_tokens);
  }
  EXPECT_EQ(report.final.kv_blocks_used, 0);
  EXPECT_EQ(report.groups->failures_total, 0);
  const SimulationReport again = simulate(config, trace);
  EXPECT_TRUE(to_csv(report) == to_csv(again));
  EXPECT_TRUE(groups_to_csv(report) == groups_to_csv(again));
}

std::size_t replicas_alone(const SimulationReport& report) {
  return static_cast<std::size_t>(
      std::count_if(report.groups->groups.begin(), report.groups->groups.end(),
                    [](const GroupStatus& group) { return group.replicas.size() == 1; }));
}

// A request of more tokens than a replica holds gets a group, which parts again after it.
TEST(GroupsSimulation, ALongRequestFormsAGroupThatPartsAfterIt) {
  const SimulationConfig config = grouped_config({.scale = ScalePolicy::kPaper});
  std::vector<TraceRequest> trace = poisson(200, 8, 30, 10);
  trace[50].input_tokens = 400;
  trace[50].output_tokens = 30;
  const SimulationReport report = simulate(config, trace);
  expect_nothing_lost(config, trace, report);
  EXPECT_GT(report.groups->together_total, 0);
  EXPECT_EQ(report.groups->together_total, report.groups->apart_total);
  EXPECT_EQ(replicas_alone(report), 4U);
  EXPECT_GT(report.kv_bytes_exchanged, 0);
  SimulationConfig off = config;
  off.groups->scale = ScalePolicy::kOff;
  EXPECT_EQ(simulate(off, trace).refused, 1) << "no replica alone can hold it";
}

// Weights are copied a hundred times slower, so that a group needs long to part.
TEST(GroupsSimulation, SlowCopiesLoseNoRequest) {
  const SimulationConfig quick = grouped_config({.scale = ScalePolicy::kPaper});
  SimulationConfig slow = quick;
  slow.morph_cost = {.copy_bytes_per_us = 1, .fetch_bytes_per_us = 1};
  std::vector<TraceRequest> trace = poisson(200, 8, 30, 10);
  for (const std::size_t i : {50, 90}) {
    trace[i].input_tokens = 400;
    trace[i].output_tokens = 30;
  }
  const auto longest_ns = [](const SimulationReport& report) {
    TimeNs longest = 0;
    for (const RegroupRecord& record : report.changes) {
      longest = std::max(longest, record.settled_ns - record.begun_ns);
    }
    return longest;
  };
  const SimulationReport report = simulate(slow, trace);
  expect_nothing_lost(slow, trace, report);
  EXPECT_GT(report.groups->together_total, 0);
  EXPECT_GT(longest_ns(report), 10 * longest_ns(simulate(quick, trace)));
}

// With `--scale layers`, as many replicas as the request needs divide layers at once, and part
// again. A request that comes while others hold the replicas waits.
TEST(GroupsSimulation, ALongRequestFormsAGroupByLayers) {
  const SimulationConfig config = grouped_config({.scale = ScalePolicy::kLayers});
  std::vector<TraceRequest> trace = poisson(200, 8, 30, 10);
  for (const std::size_t i : {50, 52, 54, 120}) {
    trace[i].input_tokens = 250;
    trace[i].output_tokens = 30;
  }
  const SimulationReport report = simulate(config, trace);
  expect_nothing_lost(config, trace, report);
  EXPECT_GE(report.groups->together_total, 2);
  EXPECT_EQ(report.groups->together_total, report.groups->apart_total);
  EXPECT_EQ(replicas_alone(report), 4U);
  for (const RegroupRecord& change : report.changes) {
    EXPECT_EQ(change.by, GroupBy::kLayers);
  }
}

// A long request that two groups could hold goes to the wider one, however busy that is.
TEST(GroupsSimulation, LongRequestsGoToTheWidestGroup) {
  SimulationConfig config = grouped_config({.replicas = 8, .scale = ScalePolicy::kPaper});
  config.wishes = {
      {0, GroupWish{.groups = {{ReplicaId{4}, ReplicaId{5}},
                               {ReplicaId{0}, ReplicaId{1}, ReplicaId{2}, ReplicaId{3}}}}}};
  const std::vector<TraceRequest> trace = {
      {kNsPerS, 40, 40}, {kNsPerS + kNsPerMs, 200, 10}, {kNsPerS + 2 * kNsPerMs, 200, 10}};
  const SimulationReport report = simulate(config, trace);
  expect_nothing_lost(config, trace, report);
  EXPECT_EQ(report.groups->together_total, 2) << "nobody waits for another group";
  for (const FinishedRequest& request : report.finished) {
    EXPECT_EQ(request.replica, ReplicaId{0});
  }
}

TEST(GroupsSimulation, RequestsMoveBetweenGroupsAndReplicas) {
  SimulationConfig config = grouped_config({.replicas = 6});
  config.wishes = {
      {0, GroupWish{.groups = {{ReplicaId{0}, ReplicaId{1}}}}},
      {0, GroupWish{.groups = {{ReplicaId{2}, ReplicaId{3}}}, .by = GroupBy::kLayers}}};
  config.migration_probability = 0.5;
  const std::vector<TraceRequest> trace = poisson(400, 15, 30, 30);
  const SimulationReport report = simulate(config, trace);
  expect_nothing_lost(config, trace, report);
  EXPECT_EQ(report.groups->together_total, 2);
  EXPECT_GT(report.final.adopted_with_kv_total, 20);
  EXPECT_GT(report.replicas[0].adopted_with_kv_total, 0);
  EXPECT_GT(report.replicas[2].adopted_with_kv_total, 0);
}

// Under a burst that needs more KV than the replicas have, layers are dropped, and fetched back
// after it. Requests start sooner than without.
TEST(GroupsSimulation, LayersAreDroppedUnderABurstAndRestored) {
  const SimulationConfig config = grouped_config({.drop = DropPolicy::kPaper});
  std::vector<TraceRequest> trace = poisson(60, 40, 30, 20);
  for (int i = 0; i < 60; ++i) {
    trace.push_back({trace.back().at_ns + kNsPerMs, 60, 60});
  }
  const SimulationReport report = simulate(config, trace);
  expect_nothing_lost(config, trace, report);
  EXPECT_GT(report.groups->together_total, 0);
  const RegroupRecord& dropped = report.changes.front();
  EXPECT_EQ(dropped.by, GroupBy::kLayers);
  EXPECT_GT(dropped.grown_ns, dropped.done_ns);
  EXPECT_LT(dropped.steps_meanwhile, 10) << "from the decision until there is more KV";
  EXPECT_EQ(replicas_alone(report), 4U);
  EXPECT_GT(report.pipelines.span_ns, report.pipelines.busy_ns);
  EXPECT_GT(report.pipelines.busy_ns, 0);
}

// A model of so many layers.
SimulationConfig deep_config(int layers) {
  SimulationConfig config = grouped_config({.drop = DropPolicy::kPaper});
  ModelSpec spec = group_spec();
  spec.layers = layers;
  config.group_cost = group_cost(config.step_cost, spec, std::vector{Precision::kF32},
                                 {.us = 5, .bytes_per_us = 1000});
  Form form = single_device_form(
      spec, Precision::kF32, DeviceId{0},
      {.precision = KvPrecision::kF32, .block_tokens = kGroupBlockTokens, .blocks = kBlocks});
  form.shards = 4;
  form.group = {whole_model(layers, form.shards, DeviceId{0})};
  PageBudget budget = config.groups->budget;
  budget.pages = form_pages(spec, form, budget.page_bytes);
  const auto engine_of = [spec, budget](const Form& of) {
    EngineConfig engine = group_engine(of, budget, false);
    const FormBounds bounds{
        .spec = spec, .budget = budget, .full = of, .ladder = {Precision::kF32}};
    engine.scheduler.largest_kv_blocks = std::max(of.kv.blocks, kv_blocks_that_fit(bounds, of));
    engine.morph = MorphConfig{.mode = MorphMode::kOff, .bounds = bounds, .start = of};
    return engine;
  };
  config.engine = engine_of(form);
  config.engine.step_precision.layers[index_of(Precision::kF32)] = 1;
  config.groups->spec = spec;
  config.groups->budget = budget;
  config.groups->form = form;
  config.groups->wide_engine = engine_of;
  return config;
}

// A burst that needs more KV than two pairs of four replicas have.
std::vector<TraceRequest> long_burst() {
  std::vector<TraceRequest> trace = poisson(60, 40, 30, 20);
  for (int i = 0; i < 150; ++i) {
    trace.push_back({trace.back().at_ns + kNsPerMs, 60, 60});
  }
  return trace;
}

// If pairs do not suffice, they become one pipeline although their KV is full, and part into pairs
// and replicas afterwards.
TEST(GroupsSimulation, PipelinesGrowWhileKvIsShort) {
  const SimulationConfig config = deep_config(16);
  const std::vector<TraceRequest> trace = long_burst();
  const SimulationReport report = simulate(config, trace);
  expect_nothing_lost(config, trace, report);
  const auto changes = [&](bool together) {
    return std::ranges::count_if(report.changes, [&](const RegroupRecord& record) {
      return record.together == together && record.by == GroupBy::kLayers &&
             record.replicas == std::vector{ReplicaId{0}, ReplicaId{2}};
    });
  };
  EXPECT_GT(changes(true), 0);
  EXPECT_GT(changes(false), 0);
  EXPECT_EQ(replicas_alone(report), 4U);
}

// The weights that these pairs would drop are smaller than a layer's KV, so their KV would have to
// shrink for one pipeline. While requests use it, that is not tried: no change fails.
TEST(GroupsSimulation, PipelinesWhoseKvIsInUseDoNotShrinkIt) {
  const SimulationConfig config = deep_config(8);
  const std::vector<TraceRequest> trace = long_burst();
  const SimulationReport report = simulate(config, trace);
  expect_nothing_lost(config, trace, report);
  EXPECT_GE(report.groups->together_total, 2);
  EXPECT_EQ(replicas_alone(report), 4U);
}

// The vote of the released code drops under the same burst, and fetches layers back while demand
// falls.
TEST(GroupsSimulation, ReplicasVoteToDropAndToRestore) {
  const SimulationConfig config = grouped_config({.drop = DropPolicy::kReleased});
  std::vector<TraceRequest> trace = poisson(60, 40, 30, 20);
  for (int i = 0; i < 60; ++i) {
    trace.push_back({trace.back().at_ns + kNsPerMs, 60, 60});
  }
  const TimeNs burst_ns = trace.back().at_ns;
  for (int i = 0; i < 300; ++i) {  // a load that falls, for longer than 30 samples
    trace.push_back({trace.back().at_ns + (50 + i) * kNsPerMs, 30, 20});
  }
  const SimulationReport report = simulate(config, trace);
  expect_nothing_lost(config, trace, report);
  ASSERT_EQ(report.groups->together_total, 2) << "both pairs at once";
  EXPECT_EQ(report.groups->apart_total, 2);
  EXPECT_EQ(replicas_alone(report), 4U);
  EXPECT_GT(report.changes.back().asked_ns, burst_ns + 14 * kNsPerS) << "29 half seconds";
}

// While a group forms, the exchange of KV alternates with steps in chunks of about a step's time,
// or of one layer if that takes longer: no request waits for the whole exchange.
TEST(GroupsSimulation, ExchangesOfKvAlternateWithSteps) {
  const auto longest_gap_us = [](double bytes_per_us, TimeNs* exchange_ns = nullptr) {
    SimulationConfig config = grouped_config({.replicas = 2});
    config.groups->steps_at_once = 100;
    config.group_cost->exchange = {.us = 1, .bytes_per_us = bytes_per_us};
    config.keep_token_times = true;
    config.wishes = {{40 * kNsPerMs,
                      GroupWish{.groups = {{ReplicaId{0}, ReplicaId{1}}}, .by = GroupBy::kLayers}}};
    const std::vector<TraceRequest> trace(2, {kNsPerMs, 60, 90});  // one in each replica
    const SimulationReport report = simulate(config, trace);
    EXPECT_EQ(report.finished.size(), 2U);
    EXPECT_EQ(report.changes.size(), 1U);
    if (exchange_ns != nullptr) {
      *exchange_ns = static_cast<TimeNs>(static_cast<double>(report.kv_bytes_exchanged) /
                                         bytes_per_us * kNsPerUs);
    }
    TimeNs gap_ns = 0;
    for (const FinishedRequest& request : report.finished) {
      for (std::size_t i = 1; i < request.tokens_ns.size(); ++i) {
        gap_ns = std::max(gap_ns, request.tokens_ns[i] - request.tokens_ns[i - 1]);
      }
    }
    return gap_ns / kNsPerUs;
  };
  const auto calm_us = longest_gap_us(1e9);
  TimeNs exchange_ns = 0;
  const auto busy_us = longest_gap_us(1, &exchange_ns);
  const std::int64_t exchange_us = exchange_ns / kNsPerUs;
  EXPECT_GT(exchange_us, 4 * calm_us) << "the whole exchange takes several steps' time";
  EXPECT_LT(busy_us, calm_us + exchange_us / kGroupLayers + calm_us);
  EXPECT_GT(busy_us, calm_us);
}

// Both devices of a group receive half of the other one's KV, one after the other over one link.
TEST(GroupsSimulation, DevicesThatShareALinkExchangeKvInTwiceTheTime) {
  constexpr double kBytesPerUs = 1;
  const auto formed_us = [&](int devices_on_link, TimeNs* exchange_us) {
    SimulationConfig config = grouped_config({.replicas = 2});
    config.group_cost->exchange = {.us = 0, .bytes_per_us = kBytesPerUs};
    config.group_cost->devices_on_link = devices_on_link;
    config.wishes = {{40 * kNsPerMs, GroupWish{.groups = {{ReplicaId{0}, ReplicaId{1}}}}}};
    const std::vector<TraceRequest> trace(2, {kNsPerMs, 60, 90});  // one in each replica
    const SimulationReport report = simulate(config, trace);
    EXPECT_EQ(report.finished.size(), 2U);
    EXPECT_EQ(report.changes.size(), 1U);
    *exchange_us =
        static_cast<TimeNs>(static_cast<double>(report.kv_bytes_exchanged) / kBytesPerUs);
    return (report.changes.front().done_ns - report.changes.front().begun_ns) / kNsPerUs;
  };
  TimeNs exchange_us = 0;
  TimeNs shared_exchange_us = 0;
  const TimeNs apart_us = formed_us(1, &exchange_us);
  const TimeNs shared_us = formed_us(2, &shared_exchange_us);
  EXPECT_GT(exchange_us, 0);
  EXPECT_GT(shared_us - apart_us, exchange_us / 2);
}

// A burst on replicas of unequal memory: each large one becomes a pipeline with a small one, of
// which it computes more layers, and they part after it.
TEST(GroupsSimulation, ReplicasOfUnequalMemoryDropLayersAndRestore) {
  SimulationConfig config = grouped_config({.drop = DropPolicy::kPaper});
  const PageBudget budget = config.groups->budget;
  Form small = group_form(15);
  small.group.front().lacking_pages =
      budget.pages - form_pages(group_spec(), small, budget.page_bytes);
  for (const Form& form : {config.groups->form, small, small, config.groups->form}) {
    config.each.push_back({{group_spec(), budget, form}, config.groups->wide_engine(form)});
  }
  config.groups->form = small;
  std::vector<TraceRequest> trace = poisson(100, 30, 20, 10);
  for (int i = 0; i < 40; ++i) {
    trace.push_back({trace.back().at_ns + kNsPerMs, 30, 20});
  }
  const SimulationReport report = simulate(config, trace);
  expect_nothing_lost(config, trace, report);
  EXPECT_GE(report.groups->together_total, 1);
  EXPECT_EQ(report.groups->together_total, report.groups->apart_total);
  EXPECT_EQ(replicas_alone(report), 4U);
  for (const std::size_t replica : {0, 3}) {
    EXPECT_EQ(report.replicas[replica].kv_blocks, kBlocks);
  }
  for (const std::size_t replica : {1, 2}) {
    EXPECT_EQ(report.replicas[replica].kv_blocks, 15);
  }
}

// Over a link that takes longer for a token's KV than a step for the token, KV is computed again.
TEST(GroupsSimulation, KvThatMovesSlowlyIsComputedAgain) {
  const std::vector<TraceRequest> trace(2, {kNsPerMs, 60, 90});  // one in each replica
  const auto grouped = [&](double bytes_per_us, bool knows) {
    SimulationConfig config = grouped_config({.replicas = 2});
    config.group_cost->exchange = {.us = 1, .bytes_per_us = bytes_per_us};
    config.groups->kv_bytes_per_s = knows ? bytes_per_us * 1e6 : 0;
    config.wishes = {{40 * kNsPerMs,
                      GroupWish{.groups = {{ReplicaId{0}, ReplicaId{1}}}, .by = GroupBy::kLayers}}};
    const SimulationReport report = simulate(config, trace);
    expect_nothing_lost(config, trace, report);
    EXPECT_EQ(report.changes.size(), 1U);
    return report;
  };
  const auto last_ns = [](const SimulationReport& report) {
    return report.finished.back().times.finished_ns;
  };
  const SimulationReport moved = grouped(0.5, false);
  const SimulationReport computed = grouped(0.5, true);
  EXPECT_EQ(moved.changes.front().recomputed, 0);
  EXPECT_EQ(computed.changes.front().recomputed, 2);
  EXPECT_EQ(computed.kv_bytes_exchanged, 0);
  EXPECT_LT(last_ns(computed), last_ns(moved));
  EXPECT_EQ(grouped(100, true).changes.front().recomputed, 0);
}

// Blocks that requests give up are not filled by those that wait: their KV would move instead.
TEST(GroupsSimulation, AQueueDoesNotFillTheBlocksThatAreGivenUp) {
  std::vector<TraceRequest> trace = poisson(60, 40, 30, 20);
  for (int i = 0; i < 60; ++i) {
    trace.push_back({trace.back().at_ns + kNsPerMs, 60, 60});
  }
  const auto first_change = [&](bool knows) {
    SimulationConfig config = grouped_config({.drop = DropPolicy::kPaper});
    config.group_cost->exchange = {.us = 1, .bytes_per_us = 0.5};
    config.groups->kv_bytes_per_s = knows ? 0.5e6 : 0;
    const SimulationReport report = simulate(config, trace);
    expect_nothing_lost(config, trace, report);
    EXPECT_FALSE(report.changes.empty());
    return report.changes.front();
  };
  const RegroupRecord moved = first_change(false);
  const RegroupRecord computed = first_change(true);
  EXPECT_TRUE(moved.together && computed.together);
  EXPECT_EQ(moved.recomputed, 0);
  EXPECT_GT(computed.recomputed, 0);
  EXPECT_LT(10 * computed.kv_bytes, moved.kv_bytes);
}

// Requests that need more KV than layers can free ask for more replicas, for as long as they do.
TEST(GroupsSimulation, AShortageBeyondMemoryAsksForReplicas) {
  SimulationConfig config = grouped_config({.drop = DropPolicy::kPaper});
  config.groups->scaler_after_ns = 100 * kNsPerMs;
  std::vector<TraceRequest> trace = poisson(60, 40, 30, 20);
  const auto most_wanted = [&] {
    const SimulationReport report = simulate(config, trace);
    EXPECT_EQ(report.replicas_wanted.front().wanted, 4);
    EXPECT_EQ(report.replicas_wanted.back().wanted, 4) << "the burst is over";
    int most = 0;
    for (const ReplicasWantedAt& at : report.replicas_wanted) {
      most = std::max(most, at.wanted);
    }
    return most;
  };
  for (int i = 0; i < 6; ++i) {
    trace.push_back({trace.back().at_ns + kNsPerMs, 60, 60});
  }
  EXPECT_EQ(most_wanted(), 4) << "what is dropped suffices";
  for (int i = 0; i < 200; ++i) {
    trace.push_back({trace.back().at_ns + kNsPerMs, 60, 60});
  }
  EXPECT_GT(most_wanted(), 6);
}

// KV of preempted requests that comes back from host memory costs its transfer, and what is
// computed meanwhile hides it.
TEST(GroupsSimulation, SwappedKvIsNotComputedAgain) {
  const std::vector<TraceRequest> trace(8, {kNsPerMs, 60, 60});
  const auto end_ns = [&](double bytes_per_us) {
    SimulationConfig config = grouped_config({.replicas = 1});
    config.morph_cost.swap_bytes_per_us = bytes_per_us;
    const SimulationReport report = simulate(config, trace);
    int preemptions = 0;
    for (const FinishedRequest& request : report.finished) {
      preemptions += request.usage.preemptions;
      EXPECT_EQ(request.usage.output_tokens, 60);
    }
    EXPECT_GT(preemptions, 0);
    return report.finished.back().times.finished_ns;
  };
  EXPECT_LT(end_ns(1e9), end_ns(0)) << "nothing is computed twice";
  EXPECT_GT(end_ns(0.01), end_ns(0)) << "the link is slower than computing";
}

// Both policies over a thousand requests, some of which are long: nothing is lost and nothing
// repeated, and pages are conserved, which the simulated devices check at each step.
TEST(GroupsSimulation, AThousandRequestsEndThroughManyChanges) {
  for (const ScalePolicy scale : {ScalePolicy::kPaper, ScalePolicy::kLayers}) {
    const bool shards = scale == ScalePolicy::kPaper;
    const SimulationConfig config =
        grouped_config({.scale = scale, .drop = shards ? DropPolicy::kPaper : DropPolicy::kOff});
    std::vector<TraceRequest> trace = poisson(1000, 8, 30, 12);
    for (std::size_t i = 0; i < trace.size(); i += 50) {
      trace[i].input_tokens = 200 + (shards ? 3 * static_cast<int>(i % 150) : 0);
    }
    const SimulationReport report = simulate(config, trace);
    expect_nothing_lost(config, trace, report);
    EXPECT_GT(report.groups->together_total, 3);
  }
}

// A step of joint devices takes what its slowest stretch takes, and a group of two by shards less
// than one device.
TEST(GroupsSimulation, AnOperatorsGroupComputesLongPromptsFaster) {
  SimulationConfig config = grouped_config({.replicas = 2});
  const std::vector<TraceRequest> trace = {{kNsPerS, 120, 10}};
  const SimulationReport alone = simulate(config, trace);
  config.wishes = {{0, GroupWish{.groups = {{ReplicaId{0}, ReplicaId{1}}}}}};
  const SimulationReport wide = simulate(config, trace);
  ASSERT_EQ(wide.finished.size(), 1U);
  const auto ttft_ns = [](const SimulationReport& report) {
    return report.finished.front().times.first_token_ns - kNsPerS;
  };
  EXPECT_LT(ttft_ns(wide), ttft_ns(alone));
  EXPECT_GT(2 * ttft_ns(wide), ttft_ns(alone)) << "sums cost time";
}

}  // namespace
}  // namespace protean

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/overloaded.h"
#include "fleet/fleet.h"
#include "fleet/grouped_devices_for_test.h"

// A fleet for tests of groups: its clients know which answers are right.

namespace protean {

class GroupSink : public TokenSink {
 public:
  struct Seen {
    bool accepted = false;
    std::optional<Error> refused;
    std::vector<TokenId> tokens;
    std::optional<Finished> finished;
  };
  void emit(OutputBatch batch) override {
    if (batch.groups) {
      groups = batch.groups;
    }
    Observation& last = observed[batch.replica];
    EXPECT_GE(batch.observation.output_tokens_total, last.output_tokens_total);
    EXPECT_GE(batch.observation.steps_total, last.steps_total);
    EXPECT_GE(batch.observation.preemptions_total, last.preemptions_total);
    last = batch.observation;
    if (batch.form) {
      see(batch.replica, *batch.form);
    }
    for (const Output& output : batch.outputs) {
      std::visit(Overloaded{[&](const Accepted& what) {
                              EXPECT_FALSE(std::exchange(seen[what.request].accepted, true));
                            },
                            [&](const Refused& what) { seen[what.request].refused = what.error; },
                            [&](const NewToken& what) {
                              EXPECT_FALSE(seen[what.request].finished.has_value());
                              seen[what.request].tokens.push_back(what.token);
                            },
                            [&](const Finished& what) {
                              EXPECT_FALSE(seen[what.request].finished.has_value());
                              seen[what.request].finished = what;
                            },
                            [&](const GroupsAnswered& what) {
                              answer = what.changes;
                              groups_at_answer = groups;
                            },
                            [&](const WishAnswered& what) { form_answer = what.morph; },
                            [](const auto&) {}},
                 output);
    }
  }
  std::map<RequestId, Seen> seen;
  std::map<ReplicaId, Observation> observed;
  std::map<ReplicaId, FormStatus> forms;
  std::optional<Result<std::vector<Regroup>>> answer;
  std::optional<Result<Morph>> form_answer;
  std::shared_ptr<const GroupsStatus> groups;
  std::shared_ptr<const GroupsStatus> groups_at_answer;  // what was known when `answer` came

 private:
  void see(ReplicaId replica, const FormStatus& now) {
    const auto tokens = [](const FormStatus& status) {
      std::int64_t sum = 0;
      for (const TokensAt& some : status.output_tokens) {
        sum += some.tokens;
      }
      return sum;
    };
    FormStatus& last = forms[replica];
    EXPECT_GE(tokens(now), tokens(last));
    EXPECT_GE(now.kv_resizes_total, last.kv_resizes_total);
    EXPECT_GE(now.blocks_moved_total, last.blocks_moved_total);
    last = now;
  }
};

// A fleet whose devices work when the test says so.
struct GroupScene {
  struct Options {
    int replicas = 2;
    std::int64_t blocks = 24;
    std::vector<std::int64_t> own_blocks = {};  // by replica, of those whose memory holds fewer
    bool morphs = true;                         // engines have a form that may change
    bool keeps_kv = false;                      // engines promise no more KV than they begin with
    std::int64_t largest_blocks = 0;            // that lower precisions may bring
    int steps_at_once = 1;
    ScalePolicy scale = ScalePolicy::kOff;
    DropPolicy drop = DropPolicy::kOff;
    MigratePolicy migrate = MigratePolicy::kOff;
    StepCost step_cost = {};
    TimeNs device_timeout_ns = 0;
    double kv_bytes_per_s = 0;
    int devices_on_link = 0;
  };
  explicit GroupScene(int replicas) : GroupScene(Options{.replicas = replicas}) {}
  explicit GroupScene(const Options& options)
      : form(forms_of(options).front()),
        budget(budget_of(group_form(options.blocks))),
        devices(forms_of(options), budget) {
    const std::vector<Form> forms = forms_of(options);
    std::vector<Member> members;
    for (int replica = 0; replica < options.replicas; ++replica) {
      EngineConfig engine = engine_of(options, forms[static_cast<std::size_t>(replica)]);
      if (engine.morph) {  // the devices know steps by their ids alone
        engine.morph->ids_after = static_cast<std::uint64_t>(replica) << 16;
      }
      members.push_back({engine, &devices.executor(static_cast<std::size_t>(replica)),
                         options.device_timeout_ns});
    }
    const auto wide = [options, this](const Form& group) { return engine_of(options, group); };
    fleet = std::make_unique<Fleet>(Dispatch{RouterPolicy::kLeastLoaded, options.migrate}, members,
                                    sink, &devices,
                                    GroupConfig{.devices = &devices,
                                                .spec = group_spec(),
                                                .budget = budget,
                                                .form = least_of(forms),
                                                .wide_engine = wide,
                                                .steps_at_once = options.steps_at_once,
                                                .scale = options.scale,
                                                .drop = options.drop,
                                                .kv_bytes_per_s = options.kv_bytes_per_s,
                                                .devices_on_link = options.devices_on_link});
  }
  EngineConfig engine_of(const Options& options, const Form& of) const {
    EngineConfig config = group_engine(of, budget, options.morphs);
    config.step_cost = options.step_cost;
    config.scheduler.largest_kv_blocks =
        std::max(config.scheduler.largest_kv_blocks, options.largest_blocks);
    if (options.keeps_kv) {
      config.morph->bounds.most_kv_blocks = of.kv.blocks;
      config.scheduler.largest_kv_blocks = of.kv.blocks;
    }
    if (config.morph) {
      FormBounds& bounds = config.morph->bounds;
      bounds.full.layer_precision = form.layer_precision;  // of all replicas and groups
      bounds.full.embeddings = form.embeddings;
      bounds.ladder.push_back(Precision::kBf16);
    }
    return config;
  }
  static std::vector<Form> forms_of(const Options& options) {
    const Form most = group_form(options.blocks);
    std::vector<Form> forms(static_cast<std::size_t>(options.replicas), most);
    for (std::size_t i = 0; i < options.own_blocks.size(); ++i) {
      forms[i] = group_form(options.own_blocks[i]);
      forms[i].group.front().lacking_pages = budget_of(most).pages - budget_of(forms[i]).pages;
    }
    return forms;
  }
  static Form least_of(const std::vector<Form>& forms) {
    return *std::ranges::min_element(forms, {}, [](const Form& one) { return one.kv.blocks; });
  }
  static PageBudget budget_of(const Form& form) {
    PageBudget budget{.page_bytes = 4096};
    budget.pages = form_pages(group_spec(), form, budget.page_bytes);
    return budget;
  }

  void send(decltype(Event::what) what, ReplicaId replica = {}) {
    fleet->handle({++now_ns, std::move(what), replica});
  }
  void arrive(int topic, int prompt, int output, Deadlines deadlines = {}) {
    Request made;
    made.id = RequestId{asked.size() + 1};
    made.max_tokens = output;
    made.deadlines = deadlines;
    for (int i = 0; i < prompt; ++i) {
      made.prompt.push_back(topic * 100 + i % 97);
    }
    asked.emplace(made.id, made);
    send(Arrival{std::move(made)});
  }
  Result<std::vector<Regroup>> want(std::vector<std::vector<int>> groups,
                                    GroupBy by = GroupBy::kShards) {
    GroupWish wish{.groups = {}, .by = by};
    for (const std::vector<int>& group : groups) {
      auto& replicas = wish.groups.emplace_back();
      for (const int replica : group) {
        replicas.push_back(ReplicaId{replica});
      }
    }
    send(WantGroups{1, std::move(wish)});
    return *std::exchange(sink.answer, std::nullopt);
  }
  // Does a replica's next work. Returns false if it has none.
  bool work(int replica) {
    const ReplicaId id{replica};
    if (devices.queue(id).empty() || devices.stuck(id)) {
      return false;
    }
    for (auto& [from, what] : devices.work(id)) {
      send(std::move(what), from);
    }
    return true;
  }
  bool ready(std::size_t n = 0, std::optional<Error> failure = std::nullopt) {
    if (devices.preparing.size() <= n || devices.stalls(n)) {
      return false;
    }
    auto [replica, event] = devices.ready(n, std::move(failure));
    send(std::move(event), replica);
    return true;
  }
  bool tick() {
    const auto deadline_ns = fleet->next_deadline_ns();
    if (!deadline_ns) {
      return false;
    }
    now_ns = std::max(now_ns, *deadline_ns);
    send(Tick{});
    return true;
  }
  // Lets replicas 0 and 1 work and what is prepared become ready in turn, until a moment counted
  // from now.
  void go_on_to(int moment) {
    for (int i = 0; i < moment; ++i) {
      if (i % 3 == 2) {
        ready();
      } else {
        work(i % 3);
      }
    }
  }
  // Lets the devices work and time pass until nothing is left to do.
  void settle() {
    for (int round = 0; round < 100'000; ++round) {
      bool more = ready();
      for (int replica = 0; replica < static_cast<int>(fleet->size()); ++replica) {
        more = work(replica) || more;
      }
      if (!more && !(changing() && tick())) {
        return;
      }
    }
    FAIL() << "there is no end: " << (changing() ? running()->waits_for : "");
  }
  bool changing() const { return running().has_value(); }
  // Returns the change that began first.
  std::optional<RunningRegroup> running() const {
    return sink.groups && !sink.groups->running.empty()
               ? std::optional(sink.groups->running.front())
               : std::nullopt;
  }
  std::string stage() const { return changing() ? running()->stage : ""; }
  std::string groups() const {
    std::string text;
    for (const GroupStatus& group : sink.groups->groups) {
      text += text.empty() ? "" : " ";
      for (const ReplicaId replica : group.replicas) {
        text += std::to_string(replica.value);
      }
    }
    return text;
  }
  // Checks that a request has the answer that one replica alone gives.
  void expect_answer(RequestId id) {
    const Request& request = asked.at(id);
    const GroupSink::Seen& seen = sink.seen.at(id);
    if (seen.refused) {
      EXPECT_FALSE(seen.accepted || seen.finished);
      return;
    }
    std::vector<TokenId> sequence = request.prompt;
    for (const TokenId token : seen.tokens) {
      ASSERT_EQ(token, token_following(sequence)) << "request " << id.value;
      sequence.push_back(token);
    }
    ASSERT_TRUE(seen.finished.has_value()) << "request " << id.value;
    if (seen.finished->reason != FinishReason::kCancelled) {
      EXPECT_EQ(seen.finished->reason, FinishReason::kLength) << seen.finished->failure;
      EXPECT_EQ(std::ssize(seen.tokens), request.max_tokens);
    }
  }
  void expect_all_answered() {
    EXPECT_TRUE(fleet->idle());
    for (const auto& [id, request] : asked) {
      expect_answer(id);
    }
    for (std::int32_t replica = 0; replica < static_cast<int>(fleet->size()); ++replica) {
      EXPECT_EQ(fleet->observe(ReplicaId{replica}).kv_blocks_used, 0);
    }
  }

  const Form form;
  const PageBudget budget;
  GroupSink sink;
  GroupedDevices devices;
  std::unique_ptr<Fleet> fleet;
  std::map<RequestId, Request> asked;
  TimeNs now_ns = 1;
};

}  // namespace protean

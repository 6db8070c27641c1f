#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "fleet/fleet.h"
#include "fleet/group_scene_for_test.h"
#include "fleet/token_kv_for_test.h"

// A fleet of one replica for tests of successions. Devices work when the test says so.

namespace protean {

// Devices of one executor, whose KV is tokens.
class SuccessionDevice : public Executor {
 public:
  struct CopyIn {
    CopyId id;
    SuccessionDevice* from = nullptr;
    std::vector<BlockMove> blocks;
  };
  using Work = std::variant<StepPlan, CopyIn, MorphId, std::vector<BlockMove>>;

  SuccessionDevice(const Form& form, const PageBudget& budget)
      : form_(form), budget_(budget), kv_(form.kv.blocks) {}

  void start(StepPlan plan) override { push(std::move(plan)); }
  void prepare(MorphId id, const MorphStep& step) override {
    steps_[id] = step;
    preparing.push_back(id);
  }
  void commit(MorphId id) override {
    const auto blocks = kv_blocks_of(steps_.at(id));
    kv_.resize(std::max(blocks.value_or(0), kv_.blocks()));
    push(id);
  }
  void abort(MorphId id) override { std::erase(preparing, id); }
  void move_blocks(std::vector<BlockMove> moves) override { push(std::move(moves)); }
  void give_up() override {
    given_up = true;
    for (const Work& what : work) {
      if (const auto* copy = std::get_if<CopyIn>(&what)) {
        copy->from->copied_.clear();
      }
    }
    work.clear();
  }
  std::vector<int> failing_devices() const override { return {0}; }
  void copy_in(CopyIn copy) {
    largest_copy = std::max(largest_copy, copy.blocks.size());
    for (const BlockMove& move : copy.blocks) {
      copy.from->copied_.insert(move.from);
    }
    push(std::move(copy));
  }

  // Does the next work and returns its event, if it has one.
  std::optional<decltype(Event::what)> do_next() {
    Work next = std::move(work.front());
    work.pop_front();
    return std::visit([this](auto& what) { return run(what); }, next);
  }

  std::deque<Work> work;
  std::deque<MorphId> preparing;
  bool given_up = false;
  bool retired = false;  // another one has succeeded it
  std::size_t largest_copy = 0;
  std::int64_t tokens = 0;  // that it has computed

 private:
  using What = std::optional<decltype(Event::what)>;

  void push(Work what) {
    EXPECT_FALSE(retired) << "work for devices that were succeeded";
    if (!given_up) {
      work.push_back(std::move(what));
    }
  }
  What run(StepPlan& plan) {
    tokens += std::ssize(plan.tokens);
    for (const SequenceSlice& slice : plan.slices) {
      const int last = slice.first_position + slice.token_count - 1;
      for (int i = slice.first_position / kGroupBlockTokens; i <= last / kGroupBlockTokens; ++i) {
        EXPECT_FALSE(copied_.contains(plan.blocks[static_cast<std::size_t>(slice.block_begin + i)]))
            << "a step writes to a block that is copied";
      }
    }
    return StepDone{kv_.compute(plan)};
  }
  What run(CopyIn& copy) {
    copy.from->copied_.clear();
    for (const BlockMove& move : copy.blocks) {
      for (int layer = 0; layer < kGroupLayers; ++layer) {
        kv_.at(layer, move.to) = copy.from->kv_.at(layer, move.from);
      }
    }
    return BlocksCopied{copy.id};
  }
  What run(MorphId& id) {
    if (const auto blocks = kv_blocks_of(steps_.at(id))) {
      kv_.resize(*blocks);
    }
    form_ = after(form_, steps_.at(id));
    return MorphDone{id, budget_.pages - form_pages(group_spec(), form_, budget_.page_bytes)};
  }
  What run(std::vector<BlockMove>& moves) {
    for (const BlockMove& move : moves) {
      kv_.move(move);
    }
    return std::nullopt;
  }

  Form form_;
  const PageBudget budget_;
  TokenKv kv_;
  std::map<MorphId, MorphStep> steps_;
  std::set<BlockId> copied_;  // blocks that a copy in flight reads
};

struct SuccessionScene : KvExchange {
  struct Options {
    std::int64_t blocks = 200;
    int sequences = 6;
    int in_flight = 1;
    int longest = 2000;
    bool morphs = false;
    Precision precision = Precision::kF32;
    TimeNs timeout_ns = 0;
  };

  explicit SuccessionScene(const Options& options) {
    fleet = std::make_unique<Fleet>(Dispatch{}, std::vector{member_of(options)}, sink, this);
  }
  Member member_of(const Options& options) {
    Form form = group_form(options.blocks);
    form.embeddings = options.precision;
    PageBudget budget{.page_bytes = 4096};
    budget.pages = form_pages(group_spec(), form, budget.page_bytes);
    EngineConfig engine = group_engine(form, budget, options.morphs);
    engine.max_in_flight = engine.scheduler.steps_in_flight = options.in_flight;
    engine.scheduler.max_num_seqs = options.sequences;
    engine.scheduler.max_model_len = options.longest;
    devices.push_back(std::make_unique<SuccessionDevice>(form, budget));
    return {engine, devices.back().get(), options.timeout_ns, form};
  }
  Status succeed(const Options& options) {
    const Status begun = fleet->succeed(member_of(options), ReplicaId{1}, ++now_ns);
    if (!begun.ok()) {
      devices.pop_back();
    }
    look();
    return begun;
  }
  void copy(CopyId id, ReplicaId from, ReplicaId to, std::vector<BlockMove> blocks) override {
    EXPECT_EQ(from, ReplicaId{0});
    EXPECT_EQ(to, ReplicaId{1});
    ++copies;
    devices.back()->copy_in({id, &now(), std::move(blocks)});
  }
  void succeeded() override {
    now().retired = true;
    EXPECT_TRUE(now().work.empty()) << "it had something to do";
    serves = devices.size() - 1;
    ++switches;
  }
  // Notes how a succession has ended.
  void look() {
    if (auto how = fleet->take_succeeded()) {
      EXPECT_FALSE(ended.has_value());
      EXPECT_EQ(how->ok(), serves == devices.size() - 1);
      ended = std::move(how);
    }
  }
  SuccessionDevice& now() { return *devices[serves]; }
  SuccessionDevice& next() { return *devices.back(); }
  bool succeeds() const { return serves + 1 < devices.size() && !ended; }

  void send(decltype(Event::what) what, ReplicaId replica = {}) {
    fleet->handle({++now_ns, std::move(what), replica});
    look();
  }
  void arrive(int topic, int prompt, int output) {
    Request made;
    made.id = RequestId{asked.size() + 1};
    made.max_tokens = output;
    for (int i = 0; i < prompt; ++i) {
      made.prompt.push_back(topic * 100 + i % 97);
    }
    asked.emplace(made.id, made);
    send(Arrival{std::move(made)});
  }
  // Lets a device do its next work. Returns false if it has none.
  bool work(SuccessionDevice& device) {
    const ReplicaId replica{&device == &now() ? 0 : 1};
    if (!device.preparing.empty()) {
      const MorphId id = device.preparing.front();
      device.preparing.pop_front();
      send(MorphReady{id, {}, {}}, replica);
      return true;
    }
    if (device.work.empty()) {
      return false;
    }
    if (auto what = device.do_next()) {
      send(*std::move(what), replica);
    }
    return true;
  }
  bool serve() { return work(now()); }
  bool fill() { return succeeds() && work(next()); }
  void serve(int times) {
    for (int i = 0; i < times; ++i) {
      serve();
    }
  }
  void settle() {
    for (bool more = true; more;) {
      more = serve();
      more = fill() || more;
    }
  }
  const GroupSink::Seen& seen(std::uint64_t id) { return sink.seen[RequestId{id}]; }
  std::int64_t tokens_computed() const {
    std::int64_t sum = 0;
    for (const auto& device : devices) {
      sum += device->tokens;
    }
    return sum;
  }
  // Checks that each request has the answer that the first devices alone give, and that nothing is
  // left.
  void expect_all_answered() {
    EXPECT_TRUE(fleet->idle());
    EXPECT_EQ(fleet->observe(ReplicaId{0}).kv_blocks_used, 0);
    for (const auto& [id, request] : asked) {
      const GroupSink::Seen& got = sink.seen.at(id);
      if (got.refused) {
        continue;
      }
      std::vector<TokenId> sequence = request.prompt;
      for (const TokenId token : got.tokens) {
        ASSERT_EQ(token, token_following(sequence)) << "request " << id.value;
        sequence.push_back(token);
      }
      ASSERT_TRUE(got.finished.has_value()) << "request " << id.value;
      if (got.finished->reason != FinishReason::kCancelled) {
        EXPECT_EQ(got.finished->reason, FinishReason::kLength) << got.finished->failure;
        EXPECT_EQ(std::ssize(got.tokens), request.max_tokens);
      }
    }
  }

  GroupSink sink;
  std::vector<std::unique_ptr<SuccessionDevice>> devices;  // the latest is to succeed, or has
  std::unique_ptr<Fleet> fleet;
  std::map<RequestId, Request> asked;
  std::size_t serves = 0;
  std::optional<Status> ended;  // how the latest succession has
  TimeNs now_ns = 1;
  int copies = 0;
  int switches = 0;
};

}  // namespace protean

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/repetitions_for_test.h"
#include "engine/engine.h"
#include "engine/held_device_for_test.h"
#include "engine/recording_sink_for_test.h"
#include "scheduler/simulated_kv_for_test.h"

// Random forms under random load, with a simulated KV that records its content and a device that
// counts its pages. Checks at all times that pages are conserved and within the budget (invariant
// 1), every form on the way is legal and fits (3), no request is lost because KV is full (4), no
// prefix of another precision is reused (5) and every accepted request ends once (7); and
// afterwards that the same events give the same decisions (6).

namespace protean {
namespace {

struct StormCoverage {
  std::int64_t commits = 0;
  std::int64_t failures = 0;
  std::int64_t late_answers = 0;
  std::int64_t moved_blocks = 0;
  std::int64_t reused_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t granted = 0;
  std::int64_t refused_wishes = 0;
  std::int64_t embeddings_swapped = 0;
  std::int64_t lent_to_embeddings = 0;
};

// Logs an engine's decisions, and passes them on if there is a next executor.
class Decisions : public Executor {
 public:
  explicit Decisions(Executor* next) : next_(next) {}
  void start(StepPlan plan) override {
    lines.push_back(fmt::format("start {} tokens {} blocks {}", plan.id.value,
                                fmt::join(plan.tokens, " "), fmt::join(plan.blocks, " ")));
    if (next_ != nullptr) {
      next_->start(std::move(plan));
    }
  }
  void prepare(MorphId id, const MorphStep& step) override {
    lines.push_back(fmt::format("prepare {} {}", id.value, to_string(step)));
    if (next_ != nullptr) {
      next_->prepare(id, step);
    }
  }
  void commit(MorphId id) override {
    lines.push_back(fmt::format("commit {}", id.value));
    if (next_ != nullptr) {
      next_->commit(id);
    }
  }
  void abort(MorphId id) override {
    lines.push_back(fmt::format("abort {}", id.value));
    if (next_ != nullptr) {
      next_->abort(id);
    }
  }
  void move_blocks(std::vector<BlockMove> moves) override {
    for (const BlockMove& move : moves) {
      lines.push_back(fmt::format("move {} to {}", move.from, move.to));
    }
    if (next_ != nullptr) {
      next_->move_blocks(std::move(moves));
    }
  }
  std::vector<std::string> lines;

 private:
  Executor* next_;
};

class Storm {
 public:
  Storm(unsigned seed, StormCoverage& coverage)
      : coverage_(coverage),
        random_(seed),
        morph_(config(seed)),
        engine_config_(with_depth(morph_, 1 + seed % 4)),
        device_(morph_),
        kv_(engine_config_.scheduler),
        decisions_(&device_),
        engine_(engine_config_, decisions_, sink_) {
    device_.on_moves = [this](const std::vector<BlockMove>& moves) {
      coverage_.moved_blocks += std::ssize(moves);
      std::for_each(moves.begin(), moves.end(), [this](const auto& move) { kv_.move(move); });
    };
    device_.on_form = [this](const Form& form) {
      kv_.resize(form.kv.blocks);
      ++coverage_.commits;
    };
  }

  void run() {
    for (int i = 0; i < 1500 && !testing::Test::HasFailure(); ++i) {
      happen();
    }
    drain();
  }

 private:
  static MorphConfig config(unsigned seed) {
    const MorphMode modes[] = {MorphMode::kOff, MorphMode::kBalanced, MorphMode::kPerformance};
    const int vocab =
        seed % 2 == 0 ? 100 : 300;  // an embedding matrix that needs pages of the KV cache
    MorphConfig config = morph_for_test(9 + seed % 5, modes[seed % 3], 2, vocab);
    config.policy.ttft_ns = 5 * kNsPerMs;
    config.max_in_flight_swaps = 1 + static_cast<int>(seed % 8);
    config.moves_per_step = 1 + static_cast<int>(seed % 5);
    PageBudget& budget = config.bounds.budget;
    if (seed % 4 < 2) {  // no page is kept free: KV lends swaps theirs
      budget.pages -= budget.reserve;
      budget.reserve = 0;
    }
    budget.pages += seed % 3 == 0 ? 0 : seed % 40;  // sometimes room to prepare far ahead
    return config;
  }
  static EngineConfig with_depth(const MorphConfig& morph, unsigned depth) {
    EngineConfig config = engine_for_test(morph);
    config.max_in_flight = static_cast<int>(depth);
    return config;
  }
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  void send(auto what) {
    events_.push_back({now_ns_ += below(2) * kNsPerMs, std::move(what)});
    engine_.handle(events_.back());
  }

  void happen() {
    const int what = below(100);
    if (what < 12) {
      arrive();
    } else if (what < 15 && last_id_ > 0) {
      send(Cancel{RequestId{1 + random_() % last_id_}});
    } else if (what < 20) {
      wish();
    } else if (what < 24) {
      now_ns_ += below(50) * kNsPerMs;
      send(Tick{});
    } else if (what < 40) {
      answer();
    } else {
      work();
    }
  }

  void arrive() {
    Request asks;
    asks.id = RequestId{++last_id_};
    const int count = 1 + below(40);
    const int topic = below(3);
    for (int i = 0; i < count; ++i) {
      asks.prompt.push_back(below(20) == 0 ? below(50) : topic);
    }
    asks.max_tokens = 1 + below(24);
    clients_[asks.id] = {.tokens = asks.prompt};
    send(Arrival{std::move(asks)});
  }

  void wish() {
    FormWish wished;
    wished.release = below(3) == 0;
    if (!wished.release) {
      for (int layer = 0; layer < 2; ++layer) {
        wished.layers.push_back({any_precision(), any_precision()});
      }
      if (below(3) == 0) {
        wished.embeddings = below(2) == 0 ? Precision::kBf16 : Precision::kW8;
      }
      if (below(2) == 0) {
        wished.kv_blocks = 1 + below(30);
      }
    }
    send(WantForm{++last_wish_, std::move(wished)});
  }
  Precision any_precision() { return below(2) == 0 ? Precision::kBf16 : Precision::kW4; }

  // Answers a prepare() with success or failure, sometimes after its abort.
  void answer() {
    if (device_.preparing.empty()) {
      return;
    }
    const int fail = draining_ ? 1 : below(15);
    const auto n = static_cast<std::size_t>(below(static_cast<int>(device_.preparing.size())));
    const std::int64_t failures = sink_.form->failures_total;
    send(device_.ready(
        n, fail == 0 ? std::optional(Error{ErrorCode::kInternal, "storm"}) : std::nullopt));
    coverage_.failures += sink_.form->failures_total - failures;
    coverage_.late_answers += fail == 0 && sink_.form->failures_total == failures ? 1 : 0;
  }

  void work() {
    if (device_.work.empty()) {
      return;
    }
    if (!std::holds_alternative<StepPlan>(device_.work.front())) {
      if (const auto done = device_.apply_next()) {
        send(*done);
      }
      return;
    }
    Step step{.plan = std::get<StepPlan>(device_.work.front()), .tag = tag_of(device_.form())};
    device_.work.pop_front();
    StepResult result{.id = step.plan.id};
    result.sampled.resize(step.plan.samples.size());
    compute(step, result);
    send(StepDone{std::move(result)});
  }

  void count_embeddings(const Result<Morph>& granted) {
    if (!granted.ok()) {
      return;
    }
    const std::vector<MorphStep>& steps = granted->steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto* swap = std::get_if<SwapComponent>(&steps[i]);
      if (swap != nullptr && swap->component == Component::kEmbeddings) {
        ++coverage_.embeddings_swapped;
        coverage_.lent_to_embeddings +=
            i > 0 && std::holds_alternative<ResizeKv>(steps[i - 1]) ? 1 : 0;
      }
    }
  }

  unsigned tag_of(const Form& form) {
    const auto tag = static_cast<unsigned>(tags_.size());
    return tags_.emplace(precision_key(form), tag).first->second;
  }
  static std::string precision_key(const Form& form) {
    return fmt::format("{} {} {}", to_string(form.layer_precision[0]),
                       to_string(form.layer_precision[1]), to_string(form.embeddings));
  }

  void compute(Step& step, StepResult& result) {
    for (const SequenceSlice& slice : step.plan.slices) {
      Client& client = clients_.at(slice.request);
      if (slice.first_position != client.next) {
        step.placed.insert(slice.request);
        coverage_.reused_tokens += slice.first_position;
      }
      client.next = slice.first_position + slice.token_count;
      kv_.execute(step, slice, client);
      if (slice.sample >= 0) {
        const auto token = static_cast<TokenId>(below(3));
        result.sampled[static_cast<std::size_t>(slice.sample)] = token;
        client.tokens.push_back(token);
      }
    }
  }

  // Without further failures, all requests and morphs end.
  void drain() {
    draining_ = true;
    send(WantForm{++last_wish_, {.release = true}});
    int rounds = 0;
    for (; rounds < 100'000 && !testing::Test::HasFailure(); ++rounds) {
      if (device_.preparing.empty() && device_.work.empty()) {
        const auto deadline_ns = engine_.next_deadline_ns();
        if (engine_.idle() && (!deadline_ns || quiet_ticks_++ > 2000)) {
          break;
        }
        ASSERT_TRUE(deadline_ns.has_value()) << "requests wait and no tick is due";
        now_ns_ = std::max(now_ns_, *deadline_ns);
        send(Tick{});
      }
      answer();
      work();
    }
    ASSERT_FALSE(testing::Test::HasFailure());
    ASSERT_TRUE(engine_.idle()) << "no end in sight";
    expect_ended();
    expect_replayed();
  }

  // Checks that the same events give the same decisions (invariant 6).
  void expect_replayed() {
    Decisions again(nullptr);
    RecordingSink heard;
    Engine engine(engine_config_, again, heard);
    for (const Event& event : events_) {
      engine.handle(event);
    }
    EXPECT_TRUE(again.lines == decisions_.lines);
    EXPECT_EQ(heard.outputs.size(), sink_.outputs.size());
  }

  void expect_ended() {
    EXPECT_EQ(sink_.observation.kv_blocks_used, 0);
    EXPECT_EQ(sink_.observation.kv_blocks, device_.form().kv.blocks);
    EXPECT_EQ(device_.pages_used(), device_.pages_of(device_.form()));
    EXPECT_EQ(sink_.form->form, device_.form());
    EXPECT_EQ(sink_.form->wanted, device_.form());
    EXPECT_LE(sink_.form->history->size(), 256U);
    if (morph_.mode != MorphMode::kOff) {
      EXPECT_EQ(precision_key(device_.form()), precision_key(morph_.start)) << "never restored";
    }
    std::map<RequestId, int> ends;
    for (const Finished& finished : sink_.all<Finished>()) {
      ++ends[finished.request];
      EXPECT_NE(finished.reason, FinishReason::kFailed) << finished.failure;
      std::int64_t drawn = 0;
      for (const TokensAt& at : finished.usage.output_at) {
        drawn += at.tokens;
      }
      EXPECT_EQ(drawn, finished.usage.output_tokens);
    }
    const auto accepted = sink_.all<Accepted>();
    EXPECT_EQ(ends.size(), accepted.size());
    EXPECT_TRUE(
        std::all_of(ends.begin(), ends.end(), [](const auto& end) { return end.second == 1; }));
    EXPECT_EQ(accepted.size() + sink_.all<Refused>().size(), last_id_);
    const auto answers = sink_.all<WishAnswered>();
    EXPECT_EQ(answers.size(), last_wish_);
    for (const WishAnswered& answered : answers) {
      ++(answered.morph.ok() ? coverage_.granted : coverage_.refused_wishes);
      count_embeddings(answered.morph);
    }
    coverage_.preemptions += sink_.observation.preemptions_total;
  }

  StormCoverage& coverage_;
  std::mt19937 random_;
  const MorphConfig morph_;
  const EngineConfig engine_config_;
  HeldDevice device_;
  SimulatedKv kv_;
  Decisions decisions_;
  std::vector<Event> events_;
  RecordingSink sink_;
  Engine engine_;
  Clients clients_;
  std::map<std::string, unsigned> tags_;
  TimeNs now_ns_ = 0;
  std::uint64_t last_id_ = 0;
  std::uint64_t last_wish_ = 0;
  int quiet_ticks_ = 0;
  bool draining_ = false;
};

TEST(MorphStorm, PagesBlocksAndRequestsComeThroughIt) {
  StormCoverage coverage;
  for (int seed = 0; seed < repetitions(60); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Storm(static_cast<unsigned>(seed), coverage).run();
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GT(coverage.commits, repetitions(1000));
  EXPECT_GT(coverage.failures, repetitions(50));
  EXPECT_GT(coverage.late_answers, repetitions(10));
  EXPECT_GT(coverage.moved_blocks, repetitions(500));
  EXPECT_GT(coverage.reused_tokens, repetitions(1000));
  EXPECT_GT(coverage.preemptions, repetitions(100));
  EXPECT_GT(coverage.granted, repetitions(500));
  EXPECT_GT(coverage.refused_wishes, repetitions(100));
  EXPECT_GT(coverage.embeddings_swapped, repetitions(100));
  EXPECT_GT(coverage.lent_to_embeddings, repetitions(30));
}

}  // namespace
}  // namespace protean

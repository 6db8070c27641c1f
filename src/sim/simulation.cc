#include "sim/simulation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fleet/fleet.h"
#include "sim/event_heap.h"
#include "sim/simulated_devices.h"

namespace protean {
namespace {

// Returns the n-th number of a random stream (SplitMix64).
std::uint64_t random_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t n) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15ULL * (stream * 0x2545F4914F6CDD1DULL + n + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

constexpr std::uint64_t kVocab = 32000;
constexpr TokenId kStopToken = static_cast<TokenId>(kVocab);
constexpr std::uint64_t kSharedStream = 0;  // the streams of prompts are request ids, from 1
constexpr std::uint64_t kCancelStream = ~std::uint64_t{0};
constexpr std::uint64_t kMigrationStream = kCancelStream - 1;
constexpr std::uint64_t kOutputStream = std::uint64_t{1} << 40;  // plus the request id
constexpr std::uint64_t kPrefixStream = std::uint64_t{1} << 41;  // plus the prefix block

int tokens_within(std::int64_t tokens, int limit) {
  return static_cast<int>(std::clamp<std::int64_t>(tokens, 1, limit));
}

TokenId token_of(std::uint64_t seed, std::uint64_t stream, int position) {
  return static_cast<TokenId>(random_at(seed, stream, static_cast<std::uint64_t>(position)) %
                              kVocab);
}

// The world around a fleet: a clock, a heap of future events, and the report.
class World : public TokenSink {
 public:
  World(const SimulationConfig& config, std::span<const TraceRequest> trace)
      : config_(config),
        trace_(trace),
        devices_(
            forms_of(config), times_of(config), config.seed,
            {now_ns_, heap_, [this](RequestId id, int position) { return drawn(id, position); }}),
        fleet_(config.dispatch, members(), *this, &devices_, groups()) {}

  SimulationReport run() {
    for (std::size_t i = 0; i < config_.wishes.size(); ++i) {
      const WishAt& at = config_.wishes[i];
      const auto event = [&](const auto& wish) {
        using Wish = std::decay_t<decltype(wish)>;
        using Want = std::conditional_t<std::is_same_v<Wish, FormWish>, WantForm, WantGroups>;
        heap_.push({at.at_ns, Want{i + 1, wish}, ReplicaId{0}});
      };
      std::visit(event, at.wish);
    }
    while (next_arrival_ < trace_.size() || !heap_.empty() || devices_.copied_ns() != kNever ||
           (config_.engine.morph && fleet_.next_deadline_ns())) {
      const TimeNs arrival_ns = next_arrival_ns();
      const TimeNs copied_ns = devices_.copied_ns();
      const TimeNs next_ns = std::min({arrival_ns, copied_ns, heap_.next_ns()});
      if (const auto deadline_ns = fleet_.next_deadline_ns();
          deadline_ns && *deadline_ns < next_ns) {
        go_to(*deadline_ns);
        fleet_.handle({now_ns_, Tick{}});
        continue;
      }
      go_to(next_ns);
      if (copied_ns == next_ns) {
        fleet_.handle(devices_.take_copied());
      } else if (arrival_ns == next_ns) {
        arrive();
      } else {
        fleet_.handle(heap_.pop());
      }
    }
    for (std::size_t replica = 0; replica < fleet_.size(); ++replica) {
      report_.replicas.push_back(fleet_.observe(ReplicaId{static_cast<std::int32_t>(replica)}));
    }
    report_.final = sum_of(report_.replicas);
    report_.pipelines = devices_.pipelines();
    report_.kv_bytes_exchanged = devices_.kv_bytes_exchanged();
    return std::move(report_);
  }

  void emit(OutputBatch batch) override {
    if (batch.form != nullptr) {
      report_.forms.push_back({batch.at_ns, batch.replica, batch.form});
    }
    if (batch.groups != nullptr) {
      see(*batch.groups);
      report_.groups = batch.groups;
    }
    if (batch.replicas_wanted) {
      report_.replicas_wanted.push_back({batch.at_ns, batch.replicas_wanted->wanted});
    }
    for (const Output& output : batch.outputs) {
      if (const auto* finished = std::get_if<Finished>(&output)) {
        --live_;
        report_.finished.push_back({finished->request.value, batch.replica, finished->reason,
                                    finished->usage, finished->times,
                                    tokens_of(finished->request)});
      } else if (const auto* refused = std::get_if<Refused>(&output)) {
        --live_;
        refuse(refused->request, batch.at_ns);
      } else if (const auto* drawn = std::get_if<NewToken>(&output);
                 drawn != nullptr && config_.keep_token_times) {
        tokens_ns_[drawn->request].push_back(batch.at_ns);
      }
    }
  }

 private:
  static DeviceTimes times_of(const SimulationConfig& config) {
    DeviceTimes times{.cost = {},
                      .morph = config.morph_cost,
                      .block_copy_us = config.block_copy_us,
                      .step_precision = config.engine.step_precision};
    times.cost.shared.front() = config.step_cost;
    times.cost = config.group_cost.value_or(times.cost);
    return times;
  }

  static std::vector<std::optional<MorphModel::Devices>> forms_of(const SimulationConfig& config) {
    const auto replicas = static_cast<std::size_t>(config.replicas);
    if (config.each.size() > 1) {
      check(config.each.size() == replicas, "each of unequal replicas has its devices");
      std::vector<std::optional<MorphModel::Devices>> unequal;
      for (const SimulatedReplica& one : config.each) {
        unequal.emplace_back(one.devices);
      }
      return unequal;
    }
    std::optional<MorphModel::Devices> alike;
    if (!config.each.empty()) {
      alike = config.each.front().devices;
    } else if (config.engine.morph) {
      const MorphConfig& morph = *config.engine.morph;
      alike = MorphModel::Devices{morph.bounds.spec, morph.bounds.budget, morph.start};
    }
    return std::vector<std::optional<MorphModel::Devices>>(replicas, alike);
  }

  GroupConfig groups() {
    GroupConfig groups = config_.groups.value_or(GroupConfig());
    groups.devices = config_.groups ? &devices_ : nullptr;
    return groups;
  }

  std::vector<Member> members() {
    std::vector<Member> all;
    for (std::size_t i = 0; i < static_cast<std::size_t>(config_.replicas); ++i) {
      EngineConfig engine = config_.engine;
      if (config_.each.size() > 1) {
        engine = config_.each[i].engine.value_or(engine);
      }
      engine.step_cost = engine.step_cost.is_known() ? engine.step_cost : config_.step_cost;
      all.push_back({engine, &devices_.executor(i)});
    }
    return all;
  }

  // Keeps the changes that have ended, with what was found out since.
  void see(const GroupsStatus& status) {
    const std::int64_t ended =
        status.records_total - (report_.groups ? report_.groups->records_total : 0);
    const std::int64_t shown = std::min(ended, static_cast<std::int64_t>(status.history.size()));
    report_.changes.insert(report_.changes.end(), status.history.end() - shown,
                           status.history.end());
    std::copy_backward(status.history.begin(), status.history.end(), report_.changes.end());
  }

  // With open answers, returns the stop token after the last token of the trace's answer.
  TokenId drawn(RequestId request, int position) const {
    const TraceRequest& traced = trace_[request.value - 1];
    const std::int64_t prompt = prompt_tokens(traced);
    const bool ended = config_.open_answers &&
                       position >= prompt + std::max(traced.output_tokens, std::int64_t{1});
    return ended ? kStopToken : token_of(config_.seed, kOutputStream + request.value, position);
  }

  // Returns the tokens of the longest request that is sent.
  int longest_tokens() const {
    return config_.groups && !config_.groups->longest_tokens.empty()
               ? config_.groups->longest_tokens.back()
               : config_.engine.scheduler.max_model_len;
  }

  int prompt_tokens(const TraceRequest& traced) const {
    return tokens_within(traced.input_tokens, longest_tokens() - 1);
  }

  // Returns when the next request arrives, as far as is known now: a client that waits for the end
  // of another request has no time yet.
  TimeNs next_arrival_ns() const {
    const bool waits = config_.max_concurrency > 0 && live_ >= config_.max_concurrency;
    return next_arrival_ == trace_.size() || waits ? kNever
                                                   : std::max(trace_[next_arrival_].at_ns, now_ns_);
  }

  // Copies go on until then, and time with them.
  void go_to(TimeNs at_ns) {
    const TimeNs then_ns = std::max(now_ns_, at_ns);
    devices_.copy_until(then_ns);
    now_ns_ = then_ns;
  }

  std::vector<TimeNs> tokens_of(RequestId request) {
    const auto found = tokens_ns_.find(request);
    return found == tokens_ns_.end() ? std::vector<TimeNs>()
                                     : std::move(tokens_ns_.extract(found).mapped());
  }

  void refuse(RequestId request, TimeNs at_ns) {
    report_.refusals.push_back({request.value, at_ns});
    ++report_.refused;
  }

  TokenId prompt_token(const TraceRequest& traced, std::uint64_t request, int position) const {
    if (position < config_.shared_prefix_tokens) {
      return token_of(config_.seed, kSharedStream, position);
    }
    if (config_.prefix_block_tokens > 0) {
      const auto block = static_cast<std::size_t>(position / config_.prefix_block_tokens);
      if (block < traced.prefix_blocks.size()) {
        return token_of(config_.seed,
                        kPrefixStream + static_cast<std::uint64_t>(traced.prefix_blocks[block]),
                        position);
      }
    }
    return token_of(config_.seed, request, position);
  }

  void arrive() {
    const TraceRequest& traced = trace_[next_arrival_++];
    const int limit = longest_tokens();
    const int prompt = prompt_tokens(traced);
    Request request;
    request.id = RequestId{next_arrival_};
    const int left = limit - prompt;
    request.max_tokens = config_.open_answers ? left : tokens_within(traced.output_tokens, left);
    if (config_.open_answers) {
      request.stop_ids = {kStopToken};
    }
    if (config_.ttft_slo_ns >= 0) {
      request.deadlines.first_token_ns = now_ns_ + config_.ttft_slo_ns;
    }
    request.prompt.reserve(static_cast<std::size_t>(prompt));
    for (int i = 0; i < prompt; ++i) {
      request.prompt.push_back(prompt_token(traced, request.id.value, i));
    }
    const double dice = chance(kCancelStream, request.id.value);
    if (dice < config_.cancel_probability) {
      const double share = dice / config_.cancel_probability;
      const double answer_us = config_.step_cost.fixed_us * request.max_tokens;
      heap_.push({now_ns_ + std::llround(share * answer_us * kNsPerUs), Cancel{request.id}});
    }
    if (config_.max_outstanding > 0 && live_ >= config_.max_outstanding) {
      refuse(request.id, now_ns_);
      return;
    }
    ++live_;
    const std::uint64_t id = request.id.value;
    fleet_.handle({now_ns_, Arrival{std::move(request)}});
    if (chance(kMigrationStream, id) < config_.migration_probability) {
      migrate(random_at(config_.seed, kMigrationStream, ~id));
    }
  }

  // Asks for moves between two random replicas.
  void migrate(std::uint64_t random) {
    const auto replicas = static_cast<std::uint64_t>(config_.replicas);
    if (replicas < 2) {
      return;
    }
    const std::uint64_t from = random % replicas;
    const std::uint64_t to = (from + 1 + (random >> 32) % (replicas - 1)) % replicas;
    const auto id = [](std::uint64_t number) {
      return ReplicaId{static_cast<std::int32_t>(number)};
    };
    fleet_.handle({now_ns_, WantMigration{.to = id(to), .requests = 8}, id(from)});
  }

  // Returns a number from 0 to 1.
  double chance(std::uint64_t stream, std::uint64_t n) const {
    return static_cast<double>(random_at(config_.seed, stream, n) >> 11) * 0x1.0p-53;
  }

  const SimulationConfig config_;
  const std::span<const TraceRequest> trace_;
  int live_ = 0;  // requests that have arrived and not ended
  std::unordered_map<RequestId, std::vector<TimeNs>> tokens_ns_;
  TimeNs now_ns_ = 0;
  EventHeap heap_;
  SimulatedDevices devices_;
  Fleet fleet_;
  std::size_t next_arrival_ = 0;
  SimulationReport report_;
};

}  // namespace

SimulationReport simulate(const SimulationConfig& config, std::span<const TraceRequest> trace) {
  return World(config, trace).run();
}

}  // namespace protean

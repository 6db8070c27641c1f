// Which KV replicas give up when they become a group or part again, because it is computed again in
// less time than it moves.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "control/moving_kv.h"
#include "control/predict.h"
#include "cost/group_cost.h"
#include "cost/link_bytes.h"
#include "fleet/regrouping.h"

namespace protean {
namespace {

// What the requests of a home, or of all, compute in steps without prompts.
struct DecodeLoad {
  double requests = 0;
  double decoding = 0;
  double context_tokens = 0;

  // Returns a step's part of it, if so many are in flight.
  Batch of_step(int steps_in_flight) const {
    return {.decoding = decoding / steps_in_flight,
            .context_tokens = context_tokens / steps_in_flight};
  }
};

bool has_attention(const MorphStep& step) {
  return std::get<HoldShards>(step).component == Component::kAttention;
}

double total_of(const std::vector<std::int64_t>& bytes) {
  return static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
}

}  // namespace

// The seconds in which links carry what moves with a change.
struct Regrouping::LinkTimes {
  std::vector<double> block_s;  // a block with KV, by home
  double kv_s = 0;              // all KV
  double fetch_s = 0;           // the weights that are fetched before the last KV moves
  int layers = 0;               // whose KV moves
};

std::vector<Copy> Regrouping::home_devices() const {
  std::vector<Copy> homes(count());
  const std::vector<Form> forms = group_.home_forms();
  int next = 0;
  for (std::size_t home = 0; home < count(); ++home) {
    for (std::size_t device = 0; device < forms[home].group.size(); ++device) {
      homes[home].push_back(next++);
    }
  }
  return homes;
}

// A link takes the time of all that its devices receive. Devices of a home that is a group count as
// those of neighbouring replicas.
Regrouping::LinkTimes Regrouping::link_times(const std::vector<std::int64_t>& live) const {
  const std::vector<Copy> homes = home_devices();
  std::vector<int> links;
  for (std::size_t home = 0; config_.devices_on_link > 0 && home < count(); ++home) {
    const int begin = group_.homes[home].value * static_cast<int>(config_.form.group.size());
    for (int device = 0; device < static_cast<int>(homes[home].size()); ++device) {
      links.push_back((begin + device) / config_.devices_on_link);
    }
  }
  const auto seconds = [&](const std::vector<std::int64_t>& received) {
    return static_cast<double>(most_bytes(links, received)) / config_.kv_bytes_per_s;
  };
  LinkTimes times{.block_s = std::vector<double>(count())};
  Form form = form_;
  double fetched_s = 0;
  for (const MorphStep& step : steps_) {
    const auto& hold = std::get<HoldShards>(step);
    fetched_s += seconds(weight_bytes_fetched(config_.spec, form, hold));
    if (has_attention(step)) {
      const auto received = kv_bytes_received(config_.spec, form, hold, homes, live);
      const double of_all = total_of(received);
      times.fetch_s = fetched_s;
      times.kv_s += seconds(received);
      times.layers += of_all > 0 ? 1 : 0;
      for (std::size_t home = 0; home < count() && of_all > 0; ++home) {
        std::vector<std::int64_t> block(count());
        block[home] = 1;
        times.block_s[home] += seconds(received) / of_all *
                               total_of(kv_bytes_received(config_.spec, form, hold, homes, block));
      }
    }
    form = after(std::move(form), step);
  }
  return times;
}

// Lets requests give up KV that moves in more time than it is computed in. They wait until no KV is
// left to move, because KV that is computed before would move, and so would that of requests that
// begin before them. No home may have started a step.
void Regrouping::give_up_kv() {
  if (config_.kv_bytes_per_s <= 0 || broken()) {
    return;
  }
  DecodeLoad all;
  std::vector<DecodeLoad> loads;
  std::vector<std::int64_t> live;
  for (std::size_t home = 0; home < count(); ++home) {
    const Observation now = engine(home).observe();
    const auto context = static_cast<double>(now.kv_blocks_used * engine(home).block_tokens());
    const DecodeLoad& load =
        loads.emplace_back(DecodeLoad{.requests = static_cast<double>(now.running + now.waiting),
                                      .decoding = static_cast<double>(now.running),
                                      .context_tokens = context});
    all.requests += load.requests;
    all.decoding += load.decoding;
    all.context_tokens += load.context_tokens;
    live.push_back(std::ssize(engine(home).live_blocks()));
  }
  const LinkTimes times = link_times(live);
  // One step comes before the first piece of KV that moves, and one after each.
  const double fewest = std::ceil(static_cast<double>(times.layers) / config_.steps_at_once);
  const double pieces = std::clamp(times.kv_s / kShortStepS, fewest,
                                   std::max(fewest, static_cast<double>(times.layers)));
  const std::optional<EngineConfig> wide =
      together_ ? std::optional(config_.wide_engine(group_.wide)) : std::nullopt;
  std::vector<std::vector<RequestId>> given_up(count());
  for (std::size_t home = 0; home < count(); ++home) {
    const StepSpeed& present = engine(home).speed();
    const StepPrecision& precision = engine(home).step_precision();
    const int steps = engine(home).limits().steps_in_flight;
    const DecodeLoad& load = together_ ? all : loads[home];
    const StepSpeed speed = wide ? speed_as(*wide, present) : present;
    const KvChange change{.requests = all.requests,
                          .batch = load.of_step(wide ? wide->scheduler.steps_in_flight : steps),
                          .sharing = load.requests,
                          .queued = load.requests - load.decoding};
    const double steps_s = (1 + pieces) * present.step_s(precision, loads[home].of_step(steps));
    const auto pays = [&](std::int64_t blocks, const PromptWork& prompt, double wait_s) {
      return pays_to_compute_again(speed, precision, change,
                                   {.seconds = times.block_s[home] * static_cast<double>(blocks),
                                    .prompt = prompt,
                                    .wait_s = wait_s});
    };
    for (const OwnKv& own : engine(home).own_kv()) {
      if (pays(own.blocks, prompt_work(own.tokens), std::max(steps_s, times.fetch_s))) {
        given_up[home].push_back(own.request);
      }
    }
    const std::int64_t idle = engine(home).idle_blocks();
    const auto idle_tokens = static_cast<double>(idle * engine(home).block_tokens());
    // Cached prompts count as long as the contexts of those that run.
    const double mean_tokens = std::max(1.0, load.context_tokens / std::max(1.0, load.decoding));
    if (pays(idle, prompt_work(mean_tokens).part(idle_tokens), 0)) {
      engine(home).forget_idle();
    }
    record_.recomputed += static_cast<int>(given_up[home].size());
    wait_.for_kv = wait_.for_kv || !given_up[home].empty();
  }
  for (std::size_t home = 0; home < count() && wait_.for_kv; ++home) {
    engine(home).give_up_kv(given_up[home], now_ns_);
  }
}

// Lets requests that gave up their KV be computed again if none is left that would move.
void Regrouping::compute_again() {
  if (wait_.for_kv && (std::ranges::any_of(steps_, has_attention) ||
                       std::ranges::any_of(preparing_, has_attention, &Step::step))) {
    return;
  }
  for (std::size_t home = 0; home < count(); ++home) {
    if (engine(home).admits_none()) {
      engine(home).admit_again();
      engine(home).go_on(now_ns_);
    }
  }
}

}  // namespace protean

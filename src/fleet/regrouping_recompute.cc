// Which KV replicas give up when they become a group or part again, because it is computed again in
// less time than it moves.

#include <algorithm>
#include <deque>
#include <numeric>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "control/moving_kv.h"
#include "cost/group_cost.h"
#include "fleet/regrouping.h"

namespace protean {
namespace {

// Returns the bytes that a link carries for a block of each home. Devices that receive KV of a
// layer do so at the same time.
std::vector<double> link_bytes(const ModelSpec& spec, Form form, const std::deque<MorphStep>& steps,
                               std::span<const Copy> homes) {
  std::vector<double> bytes(homes.size());
  for (const MorphStep& step : steps) {
    const auto& hold = std::get<HoldShards>(step);
    if (hold.component == Component::kAttention) {
      const auto received = [&](const std::vector<std::int64_t>& live) {
        return kv_bytes_received(spec, form, hold, homes, live);
      };
      const auto of_all = received(std::vector<std::int64_t>(homes.size(), 1));
      const auto receivers =
          std::ranges::count_if(of_all, [](std::int64_t some) { return some > 0; });
      for (std::size_t home = 0; home < homes.size() && receivers > 0; ++home) {
        std::vector<std::int64_t> live(homes.size());
        live[home] = 1;
        const auto of_home = received(live);
        bytes[home] +=
            static_cast<double>(std::accumulate(of_home.begin(), of_home.end(), std::int64_t{0})) /
            static_cast<double>(receivers);
      }
    }
    form = after(std::move(form), step);
  }
  return bytes;
}

}  // namespace

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

// Returns how fast steps are once the change has ended.
StepSpeed Regrouping::speed_after() {
  if (!together_) {
    return engine(0).speed();
  }
  const EngineConfig wide = config_.wide_engine(group_.wide);
  return wide.step_cost.is_known() ? engine(0).speed().at_cost(wide.step_cost, wide.path_cost)
                                   : engine(0).speed();
}

// Lets requests give up KV that moves in more time than it is computed in. They wait until the
// change has ended, because KV that is computed before would move. No home may have started a step.
void Regrouping::give_up_kv() {
  if (config_.kv_bytes_per_s <= 0 || broken()) {
    return;
  }
  std::vector<double> block_s = link_bytes(config_.spec, form_, steps_, home_devices());
  KvChange change;
  std::vector<std::vector<OwnKv>> kept;
  for (std::size_t home = 0; home < count(); ++home) {
    block_s[home] /= config_.kv_bytes_per_s;
    const Observation now = engine(home).observe();
    change.requests += now.running + now.waiting;
    change.seconds += block_s[home] * static_cast<double>(engine(home).live_blocks().size());
    change.batch.decoding += now.running;
    for (const OwnKv& own : kept.emplace_back(engine(home).own_kv())) {
      change.batch.context_tokens += own.shared_tokens + own.tokens;
    }
  }
  const double mean_tokens = change.batch.context_tokens / std::max(1.0, change.batch.decoding);
  const int engines = together_ ? 1 : static_cast<int>(count());
  const int stages = together_ ? config_.wide_engine(group_.wide).scheduler.steps_in_flight
                               : engine(0).limits().steps_in_flight;
  change.batch.decoding /= engines * stages;
  change.batch.context_tokens /= engines * stages;
  change.sharing = change.requests / engines;
  const StepSpeed speed = speed_after();
  for (std::size_t home = 0; home < count(); ++home) {
    const StepPrecision& precision = engine(home).step_precision();
    const auto moving = [&](std::int64_t blocks, const PromptWork& prompt) {
      return MovingKv{.seconds = block_s[home] * static_cast<double>(blocks), .prompt = prompt};
    };
    std::vector<RequestId> given_up;
    for (const OwnKv& own : kept[home]) {
      if (pays_to_compute_again(speed, precision, change,
                                moving(own.blocks, prompt_work(own.tokens, own.shared_tokens)))) {
        given_up.push_back(own.request);
      }
    }
    const std::int64_t idle = engine(home).idle_blocks();
    const auto idle_tokens = static_cast<double>(idle * engine(home).block_tokens());
    // Cached prompts count as long as those that run.
    if (pays_to_forget(speed, precision, change,
                       moving(idle, prompt_work(std::max(1.0, mean_tokens)).part(idle_tokens)))) {
      engine(home).forget_idle();
    }
    record_.recomputed += static_cast<int>(given_up.size());
    if (!given_up.empty()) {
      engine(home).set_aside(given_up, now_ns_);
    }
  }
}

// Lets requests that gave up their KV be computed again now.
void Regrouping::take_up() {
  for (std::size_t home = 0; home < count(); ++home) {
    if (engine(home).has_set_aside()) {
      engine(home).take_up();
      engine(home).go_on(now_ns_);
    }
  }
}

}  // namespace protean

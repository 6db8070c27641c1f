#include "control/model_moves.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "control/in_place.h"

namespace protean {
namespace {

// Most rounds until slowdowns settle. They only grow and are bounded, because no model is busy for
// more than all of the time; what the last round found is taken.
constexpr int kRounds = 40;
constexpr double kSettled = 1e-6;  // change of a slowdown that is none

// Where a model computes, and the share of the time in which it would be busy alone.
struct Work {
  std::span<const int> devices;
  double alone = 0;
};

bool holds(std::span<const int> devices, int device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

// Returns 1 and the share of the time in which others use the model's busiest device.
double slowed_by(std::size_t model, std::span<const Work> works, std::span<const double> busy) {
  double most = 0;
  for (const int device : works[model].devices) {
    double others = 0;
    for (std::size_t other = 0; other < works.size(); ++other) {
      others += other != model && holds(works[other].devices, device) ? busy[other] : 0;
    }
    most = std::max(most, others);
  }
  return 1 + most;
}

// What makes a model slower keeps it busy for longer, which slows others down in turn.
std::vector<double> settled(std::span<const Work> works) {
  std::vector<double> slowed(works.size(), 1);
  std::vector<double> busy(works.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      busy[i] = std::min(1.0, works[i].alone * slowed[i]);
    }
    bool is_settled = true;
    for (std::size_t i = 0; i < works.size(); ++i) {
      const double before = std::exchange(slowed[i], slowed_by(i, works, busy));
      is_settled = is_settled && slowed[i] - before < kSettled;
    }
    if (is_settled) {
      break;
    }
  }
  return slowed;
}

// Returns the work of models whose busy shares are off by `errors` times what is uncertain of them.
std::vector<Work> works_of(std::span<const MovableModel> models, double errors) {
  std::vector<Work> works;
  std::vector<double> busy;
  for (const MovableModel& model : models) {
    works.push_back({model.devices, 0});
    busy.push_back(std::clamp(model.busy + errors * model.busy_error, 0.0, 1.0));
  }
  for (std::size_t i = 0; i < works.size(); ++i) {
    works[i].alone = busy[i] / slowed_by(i, works, busy);
  }
  return works;
}

// Returns what a model's intent minimises if it is slowed down so much.
double value_of(const DeploymentWish& wish, EstimatedConfiguration candidate, double slowed) {
  candidate.latency.ttft_us *= slowed;
  candidate.latency.tpot_us *= slowed;
  const Score score = score_of(candidate, wish.load.output_tokens, wish.pricing);
  double value = objective_of(candidate, score, wish.intent.objective);
  if (wish.intent.latency_slo_ms) {
    value *= std::max(1.0, score.latency_ms / *wish.intent.latency_slo_ms);
  }
  if (wish.intent.cost_slo) {
    value *= std::max(1.0, score.cost / *wish.intent.cost_slo);
  }
  return value;
}

// Looks at all moves of one model.
class Moves {
 public:
  Moves(std::span<const MovableModel> models, std::span<const DeviceState> devices,
        TimeNs window_ns)
      : models_(models),
        devices_(devices),
        window_s_(static_cast<double>(window_ns) / kNsPerS),
        works_(works_of(models, +1)),
        now_(settled(works_of(models, -1))) {
    for (const MovableModel& model : models_) {
      busy_ += model.busy;
    }
  }

  std::optional<ModelMove> best() {
    for (std::size_t model = 0; model < models_.size(); ++model) {
      for (std::size_t candidate = 0; candidate < models_[model].candidates.size(); ++candidate) {
        look_at(model, candidate);
      }
    }
    return best_;
  }

 private:
  // Tries a configuration on the devices that others load least, and on those that it has.
  void look_at(std::size_t model, std::size_t candidate) {
    const MovableModel& moved = models_[model];
    const EstimatedConfiguration& wanted = moved.candidates[candidate];
    const int layers = moved.wish.spec.layers;
    std::vector<DeviceState> states(devices_.begin(), devices_.end());
    for (std::size_t i = 0; i < states.size(); ++i) {
      const int device = static_cast<int>(i);
      states[i].load = 0;
      states[i].free_bytes = std::min(states[i].free_bytes, moved.most_device_bytes);
      for (std::size_t other = 0; other < models_.size(); ++other) {
        states[i].load +=
            other != model && holds(works_[other].devices, device) ? works_[other].alone : 0;
      }
    }
    if (auto best = place(wanted.configuration, states, wanted.memory, layers,
                          {.policy = PlacementPolicy::kLeastLoaded})) {
      weigh(model, candidate, *std::move(best), false);
    }
    if (std::ssize(moved.devices) == wanted.configuration.devices() && candidate != moved.now) {
      const bool in_place = morphs(moved, candidate);
      if (in_place) {
        add_own_memory(moved, states);
      }
      if (auto same = divide_among(moved.devices, states, wanted.memory, layers)) {
        weigh(model, candidate, *std::move(same), in_place);
      }
    }
  }

  // Layers of a pipeline might go to other devices.
  static bool morphs(const MovableModel& moved, std::size_t candidate) {
    const Configuration& now = moved.candidates[moved.now].configuration;
    return now.stages == 1 &&
           morphs_between(now, moved.candidates[candidate].configuration, moved.morphs_to);
  }

  // A morph gives the memory of the present weights and KV to the next ones.
  void add_own_memory(const MovableModel& moved, std::vector<DeviceState>& states) const {
    const ConfigurationMemory& has = moved.candidates[moved.now].memory;
    for (const int device : moved.devices) {
      const auto i = static_cast<std::size_t>(device);
      states[i].free_bytes =
          std::min(devices_[i].free_bytes + has.device_bytes(moved.wish.spec.layers, true),
                   moved.most_device_bytes);
    }
  }

  void weigh(std::size_t model, std::size_t candidate, Placement placement, bool in_place) {
    const MovableModel& moved = models_[model];
    const EstimatedConfiguration& before = moved.candidates[moved.now];
    EstimatedConfiguration after = moved.candidates[candidate];
    if (candidate != moved.now) {
      after.latency.ttft_us *= 1 + kEstimateError;
      after.latency.tpot_us *= 1 + kEstimateError;
    }
    const auto latency_ms = [&](const EstimatedConfiguration& of) {
      return score_of(of, moved.wish.load.output_tokens, moved.wish.pricing).latency_ms;
    };
    std::vector<Work> works = works_;
    works[model].devices = placement.devices;
    works[model].alone *= latency_ms(after) / latency_ms(before);
    const std::vector<double> slowed = settled(works);
    const double own =
        value_of(moved.wish, after, slowed[model]) / value_of(moved.wish, before, now_[model]);
    if (own > 1) {
      return;
    }
    double saved = moved.busy * (1 - own);
    for (std::size_t i = 0; i < models_.size(); ++i) {
      if (i != model && (meet(i, moved.devices) || meet(i, placement.devices))) {
        saved += models_[i].busy * (1 - ratio_of(models_[i], slowed[i], now_[i]));
      }
    }
    const double there_s = moved.change_s * (in_place ? static_cast<double>(after.total_bytes) /
                                                            static_cast<double>(before.total_bytes)
                                                      : 1);
    const double there_and_back_s = there_s + moved.change_s;
    const ModelMove move{.model = model,
                         .candidate = candidate,
                         .placement = std::move(placement),
                         .saves_s = saved * window_s_,
                         .costs_s = there_and_back_s * (1 + busy_),
                         .in_place = in_place,
                         .slowed = now_[model],
                         .slowed_to = slowed[model]};
    if (move.saves_s - move.costs_s > (best_ ? best_->saves_s - best_->costs_s : 0)) {
      best_ = move;
    }
  }

  // Returns true if a model computes on one of the devices.
  bool meet(std::size_t model, std::span<const int> devices) const {
    return std::any_of(devices.begin(), devices.end(),
                       [&](int device) { return holds(models_[model].devices, device); });
  }

  // Returns the ratio by which the objective of a model that stays changes.
  static double ratio_of(const MovableModel& model, double slowed, double before) {
    if (model.candidates.empty()) {
      return slowed / before;
    }
    const EstimatedConfiguration& now = model.candidates[model.now];
    return value_of(model.wish, now, slowed) / value_of(model.wish, now, before);
  }

  const std::span<const MovableModel> models_;
  const std::span<const DeviceState> devices_;
  const double window_s_;
  const std::vector<Work> works_;  // at the upper bound of the loads
  const std::vector<double> now_;  // slowdowns at the lower bound of the loads
  double busy_ = 0;                // of all models together
  std::optional<ModelMove> best_;
};

}  // namespace

std::optional<ModelMove> best_move(std::span<const MovableModel> models,
                                   std::span<const DeviceState> devices, TimeNs window_ns) {
  for (const MovableModel& model : models) {
    check(model.candidates.empty() || model.now < model.candidates.size(),
          "a model is served in one of its configurations");
  }
  return Moves(models, devices, window_ns).best();
}

}  // namespace protean

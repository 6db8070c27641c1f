#include "apps/placements.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "apps/serve_intent.h"
#include "base/check.h"
#include "host/machine.h"

namespace protean {
namespace {

constexpr int kChoicesInWindow = 10;  // estimates of all configurations take a while
constexpr int kMostDoublings = 10;    // of the windows for which a model stays after a failed move

// Returns the devices on which a model computes, of `count`.
std::vector<int> devices_of(const PlanReport* report, std::size_t count) {
  if (report != nullptr && report->devices.devices.size() == count) {
    return report->deployment.placement.devices;
  }
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Returns true if each device has CPUs of its own.
bool are_apart(const std::vector<PlannedDevice>& devices) {
  return devices.size() > 1 && devices[0].cpus.where.cpus != devices[1].cpus.where.cpus;
}

std::string reason_of(const MovableModel& model, const ModelMove& move) {
  const EstimatedConfiguration& now = model.candidates[model.now];
  const EstimatedConfiguration& then = model.candidates[move.candidate];
  const auto answer_ms = [&](const EstimatedConfiguration& of) {
    return score_of(of, model.wish.load.output_tokens, model.wish.pricing).latency_ms;
  };
  std::string text = fmt::format("from device {} to {}, ", fmt::join(model.devices, ", "),
                                 fmt::join(move.placement.devices, ", "));
  if (move.candidate != model.now) {
    text += fmt::format("from {} to {} ({:.4g} and {:.4g} ms an answer alone), ",
                        to_string(now.configuration), to_string(then.configuration), answer_ms(now),
                        answer_ms(then));
  }
  return text + fmt::format(
                    "other models make its answers {:.2f} times slower now and {:.2f} times there: "
                    "saves {:.1f} busy seconds, costs {:.1f} there and back {}",
                    move.slowed, move.slowed_to, move.saves_s, move.costs_s,
                    move.in_place ? "in place" : "with the model loaded anew");
}

IntentWish wish_of(const MovableModel& model, const ModelMove& move) {
  const PlannedLoad& load = model.wish.load;
  return {.intent = to_string(model.wish.intent),
          .batch = load.batch,
          .prompt_tokens = load.prompt_tokens,
          .output_tokens = load.output_tokens,
          .move = PlannedMove{.configuration = model.candidates[move.candidate].configuration,
                              .devices = move.placement.devices,
                              .stage_layers = move.placement.stage_layers,
                              .saves_s = move.saves_s,
                              .costs_s = move.costs_s,
                              .in_place = move.in_place,
                              .why = reason_of(model, move)}};
}

}  // namespace

void Placements::add(std::size_t place, std::shared_ptr<const PlanReport> report, Change change) {
  const std::lock_guard lock(mutex_);
  const auto found = placed_.find(place);
  ModelLoad load = found == placed_.end() ? ModelLoad(window_ns_) : std::move(found->second.load);
  placed_.insert_or_assign(place, Placed{std::move(report), std::move(change), std::move(load)});
}

void Placements::remove(std::size_t place) {
  const std::lock_guard lock(mutex_);
  placed_.erase(place);
}

void Placements::loaded(std::size_t place, double load_s) {
  const std::lock_guard lock(mutex_);
  if (const auto found = placed_.find(place); found != placed_.end()) {
    found->second.change.load_s = load_s;
  }
}

void Placements::failed_to_move(std::size_t place, TimeNs now_ns) {
  const std::lock_guard lock(mutex_);
  if (const auto found = placed_.find(place); found != placed_.end()) {
    Placed& placed = found->second;
    placed.failures = std::min(placed.failures + 1, kMostDoublings);
    placed.stays_ns = now_ns + (window_ns_ << placed.failures);
  }
}

// Returns the plan whose devices count; null if there is none.
const PlanReport* Placements::common_report() const {
  for (const auto& [place, placed] : placed_) {
    if (placed.report != nullptr) {
      return placed.report.get();
    }
  }
  return nullptr;
}

// Returns can_move() to a caller that holds the lock.
bool Placements::moves() const {
  const PlanReport* report = common_report();
  return may_move_ && report != nullptr && are_apart(report->devices.devices);
}

bool Placements::can_move() const {
  const std::lock_guard lock(mutex_);
  return moves();
}

std::vector<double> Placements::device_loads(std::optional<std::size_t> without) const {
  const std::lock_guard lock(mutex_);
  const PlanReport* report = common_report();
  std::vector<double> loads(report == nullptr ? 0 : report->devices.devices.size());
  for (const auto& [place, placed] : placed_) {
    for (const int device : devices_of(placed.report.get(), loads.size())) {
      double& load = loads[static_cast<std::size_t>(device)];
      load = std::min(1.0, load + (place == without ? 0 : placed.load.busy()));
    }
  }
  return loads;
}

MovableModel Placements::movable(const Placed& placed, const ModelSample& sample,
                                 TimeNs now_ns) const {
  const std::size_t count = common_report()->devices.devices.size();
  const PlanReport* report = placed.report.get();
  MovableModel model{.devices = devices_of(report, count),
                     .busy = placed.load.busy(),
                     .busy_error = placed.load.busy_error(),
                     .change_s = placed.change.load_s,
                     .morphs_to = placed.change.morphs_to};
  if (report != nullptr && report->most_device_bytes) {
    model.most_device_bytes = *report->most_device_bytes;
  }
  if (report == nullptr || report->devices.devices.size() != count || !sample.may_move ||
      now_ns < placed.stays_ns) {
    return model;
  }
  model.wish = report->wish;
  PlannedLoad& load = model.wish.load;
  load.batch = placed.load.batch();
  load.prompt_tokens = sample.prompt_tokens > 0 ? sample.prompt_tokens : load.prompt_tokens;
  load.output_tokens = sample.output_tokens > 0 ? sample.output_tokens : load.output_tokens;
  load = within(load, model.wish.spec.max_context);
  model.candidates = report->estimate_for(load);
  model.now = report->deployment.chosen;
  return model;
}

void Placements::lose(std::span<const int> devices) {
  const std::lock_guard lock(mutex_);
  lost_.insert(devices.begin(), devices.end());
}

std::vector<int> Placements::lost() const {
  const std::lock_guard lock(mutex_);
  return {lost_.begin(), lost_.end()};
}

bool Placements::uses_lost(const PlanReport& report) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(report.deployment.placement.devices,
                             [&](int device) { return lost_.contains(device); });
}

// Devices divide the memory of this machine that neither is in use nor claimed.
std::vector<DeviceState> Placements::devices_now() const {
  const std::size_t count = common_report()->devices.devices.size();
  const std::int64_t free = std::max<std::int64_t>(0, free_memory_bytes() - claimed_bytes_);
  std::vector<DeviceState> devices(count, {.free_bytes = free / static_cast<std::int64_t>(count)});
  for (const int device : lost_) {
    if (device < std::ssize(devices)) {
      devices[static_cast<std::size_t>(device)].lost = true;
    }
  }
  return devices;
}

// Returns false if a model has not been watched for a window.
bool Placements::add_samples(std::span<const ModelSample> samples, TimeNs now_ns) {
  bool full = true;
  for (const ModelSample& sample : samples) {
    const auto found = placed_.find(sample.model);
    if (found != placed_.end()) {
      found->second.load.sample(now_ns, sample.running);
    }
    full = full && found != placed_.end() && found->second.load.is_full();
  }
  return full;
}

std::optional<ModelLoader::ModelToMove> Placements::choose_move(
    std::span<const ModelSample> samples, TimeNs now_ns) {
  const std::lock_guard lock(mutex_);
  const bool all_full = add_samples(samples, now_ns);
  // While a model comes, goes or changes, none may move.
  if (std::none_of(samples.begin(), samples.end(),
                   [](const ModelSample& sample) { return sample.may_move; })) {
    changed_ns_ = now_ns;
  }
  if (!moves() || !all_full || now_ns - changed_ns_ < window_ns_ || now_ns < next_choice_ns_) {
    return std::nullopt;
  }
  next_choice_ns_ = now_ns + window_ns_ / kChoicesInWindow;
  std::vector<MovableModel> models;
  for (const ModelSample& sample : samples) {
    models.push_back(movable(placed_.at(sample.model), sample, now_ns));
  }
  const auto move = best_move(models, devices_now(), window_ns_);
  if (!move) {
    return std::nullopt;
  }
  changed_ns_ = now_ns;
  return ModelLoader::ModelToMove{.model = samples[move->model].model,
                                  .wish = wish_of(models[move->model], *move)};
}

std::vector<int> devices_that_failed(const PlanReport& report, std::span<const CpuShare> cpus,
                                     std::vector<int> failed) {
  std::vector<int> placed = report.deployment.placement.devices;
  // A model that is bound to its devices has them in the order of their CPUs.
  for (std::size_t i = 0; i < std::min(placed.size(), cpus.size()); ++i) {
    for (const int device : report.deployment.placement.devices) {
      const CpuShare& has = report.devices.devices[static_cast<std::size_t>(device)].cpus;
      placed[i] = has.where.cpus == cpus[i].where.cpus ? device : placed[i];
    }
  }
  if (failed.empty()) {
    return placed;
  }
  std::erase_if(failed, [&](int place) { return place >= std::ssize(placed); });
  std::transform(failed.begin(), failed.end(), failed.begin(),
                 [&](int place) { return placed[static_cast<std::size_t>(place)]; });
  return failed;
}

std::shared_ptr<const PlanReport> report_of_move(const PlanReport& before, const IntentWish& wish) {
  check(wish.move.has_value(), "a move says where to");
  PlanReport report = before;
  report.wish.load = {.batch = wish.batch,
                      .prompt_tokens = wish.prompt_tokens,
                      .output_tokens = wish.output_tokens};
  Deployment& found = report.deployment;
  found.candidates = before.estimate_for(report.wish.load);
  found.scores.clear();
  for (const EstimatedConfiguration& candidate : found.candidates) {
    found.scores.push_back(score_of(candidate, wish.output_tokens, report.wish.pricing));
  }
  // If no candidate keeps the bound, none has a rank.
  auto ranked = rank(found.candidates, found.scores, report.wish.intent);
  found.ranked = ranked.ok() ? *std::move(ranked) : std::vector<std::size_t>();
  const auto chosen = std::find_if(found.candidates.begin(), found.candidates.end(),
                                   [&](const EstimatedConfiguration& one) {
                                     return one.configuration == wish.move->configuration;
                                   });
  check(chosen != found.candidates.end(), "a move chooses among the configurations of its plan");
  found.chosen = static_cast<std::size_t>(chosen - found.candidates.begin());
  found.placement = {.devices = wish.move->devices, .stage_layers = wish.move->stage_layers};
  return std::make_shared<const PlanReport>(std::move(report));
}

}  // namespace protean

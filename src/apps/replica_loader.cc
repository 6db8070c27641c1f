#include "apps/replica_loader.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "host/machine.h"

namespace protean {
namespace {

constexpr std::size_t kJobs = 64;  // push() does not refuse more
constexpr TimeNs kRest = 4;        // of the time of a step of a fingerprint, after it, under load
constexpr TimeNs kLongestRestNs = kNsPerS;
constexpr std::chrono::milliseconds kLook{1};  // between looks at whether there are requests

double seconds_since(TimeNs began_ns) {
  return static_cast<double>(steady_now_ns() - began_ns) / static_cast<double>(kNsPerS);
}

// Gives freed memory back: buffers of steps are not on pages of a pool.
void trim() {
  ::malloc_trim(0);
}

}  // namespace

ReplicaLoader::ReplicaLoader(std::vector<OpenModel>& models,
                             std::vector<std::unique_ptr<Replicas>> loaded, Server& server,
                             Defaults defaults)
    : server_(server),
      defaults_(std::move(defaults)),
      placements_(defaults_.move_window_ns),
      jobs_(kJobs) {
  for (std::size_t i = 0; i < models.size(); ++i) {
    const std::shared_ptr<void> borrowed;  // the models outlive this object
    residents_.push_back(
        {std::shared_ptr<OpenModel>(borrowed, &models[i]), server.sink(i), std::move(loaded[i])});
    placements_.add(i, models[i].report, models[i].load_s);
  }
  thread_ = std::thread([this] { run(); });
}

ReplicaLoader::~ReplicaLoader() {
  ending_ = true;
  jobs_.close();
  thread_.join();
}

void ReplicaLoader::run() {
  while (true) {
    const std::vector<std::function<void()>> jobs = jobs_.pop_all();
    if (jobs.empty()) {
      return;
    }
    for (const std::function<void()>& job : jobs) {
      --waiting_;
      if (!ending_) {
        job();
      }
    }
  }
}

// Waits before a step of a fingerprint for a moment in which no model has requests; if they go on,
// for a few times as long as the step before took, so that they lose a small share of the CPUs. If
// another job waits, such as a model that a request wakes, the fingerprint hurries.
void ReplicaLoader::await_idle() {
  const TimeNs now_ns = steady_now_ns();
  const TimeNs until_ns = now_ns + std::min(kRest * (now_ns - stepped_ns_), kLongestRestNs);
  while (!server_.idle() && waiting_ == 0 && !ending_ && steady_now_ns() < until_ns) {
    std::this_thread::sleep_for(kLook);
  }
  stepped_ns_ = steady_now_ns();
}

OpenOptions ReplicaLoader::open_options() {
  return {.may_morph = defaults_.may_morph,
          .may_move = defaults_.move_window_ns > 0,
          .before_step = [this] { await_idle(); },
          .device_loads = placements_.device_loads()};
}

void ReplicaLoader::give(std::function<void()> job) {
  ++waiting_;
  jobs_.push(std::move(job));
}

void ReplicaLoader::unload(std::size_t model) {
  give([this, model] { unload_now(model); });
}

void ReplicaLoader::load(std::size_t model) {
  give([this, model] { load_now(model); });
}

void ReplicaLoader::replace(std::size_t model, const IntentWish& wish) {
  give([this, model, wish] { replace_now(model, wish); });
}

void ReplicaLoader::remove(std::size_t model) {
  give([this, model] { remove_now(model); });
}

Status ReplicaLoader::deploy(const std::string& name, const boost::json::object& fields) {
  auto setting = model_setting(defaults_.setting, name, fields);
  if (!setting.ok()) {
    return setting.error();
  }
  give([this, setting = *std::move(setting)] { deploy_now(setting); });
  return {};
}

void ReplicaLoader::unload_now(std::size_t model) {
  Resident& resident = residents_[model];
  resident.replicas.reset();
  resident.model->inbox->reopen();
  trim();
  log::info("{} sleeps until it is asked for", name_of(*resident.model));
  server_.fell_asleep(model);
}

void ReplicaLoader::load_now(std::size_t model) {
  Resident& resident = residents_[model];
  const TimeNs began_ns = steady_now_ns();
  // Requests wait for it, so a fingerprint that is missing waits for no other model's.
  auto replicas = start_replicas(*resident.model, *resident.sink);
  if (!replicas.ok()) {
    log::error("{} does not wake: {}", name_of(*resident.model), replicas.error().message);
    server_.woke(model, replicas.error());
    return;
  }
  resident.replicas = *std::move(replicas);
  log::info("{} woke in {:.2f} s", name_of(*resident.model), seconds_since(began_ns));
  server_.woke(model, {});
}

// Models that sleep keep their claim to the memory in which they wake.
std::int64_t ReplicaLoader::claimed_bytes() const {
  std::int64_t bytes = 0;
  for (const Resident& resident : residents_) {
    const bool sleeps = resident.model != nullptr && resident.replicas == nullptr;
    bytes += sleeps ? memory_of(*resident.model) : 0;
  }
  return bytes;
}

// Hosts a model that is not loaded.
ReplicaLoader::Resident ReplicaLoader::open(OpenModel model) {
  Resident resident{std::make_shared<OpenModel>(std::move(model)), nullptr, nullptr};
  HostedModel hosted = resident.model->hosted;
  hosted.keeps = resident.model;
  resident.sink = server_.host(std::move(hosted));
  return resident;
}

void ReplicaLoader::deploy_now(ModelSetting setting) {
  const std::string name = setting.name;
  const TimeNs began_ns = steady_now_ns();
  auto opened = open_further_model(std::move(setting), open_options(), claimed_bytes());
  if (!opened.ok()) {
    server_.failed(name, opened.error());
    return;
  }
  Resident resident = open(*std::move(opened));
  auto replicas = start_replicas(*resident.model, *resident.sink, [this] { await_idle(); });
  if (!replicas.ok()) {
    server_.failed(name, replicas.error());
    return;
  }
  resident.replicas = *std::move(replicas);
  log::info("{} is deployed after {:.2f} s", name, seconds_since(began_ns));
  server_.deployed(resident.sink);
  add(std::move(resident));
}

// Loads the model next to the one that it replaces if there is memory for both.
void ReplicaLoader::replace_now(std::size_t model, const IntentWish& wish) {
  const Resident& before = residents_[model];
  const TimeNs began_ns = steady_now_ns();
  OpenOptions options = open_options();
  options.device_loads = placements_.device_loads(model);
  if (wish.move) {
    options.chosen = report_of_move(*before.model->report, wish);
  }
  auto opened = open_for_intent(*before.model, wish, options, claimed_bytes());
  if (!opened.ok()) {
    server_.not_replaced(model, opened.error());
    return;
  }
  server_.planned(model, opened->plan);
  if (same_configuration(*before.model, *opened)) {
    before.model->report = opened->report;  // of the latest intent
    placements_.add(model, opened->report, before.model->load_s);
    server_.kept(model);
    return;
  }
  opened->load_s = before.model->load_s;  // until it is loaded
  Resident resident = open(*std::move(opened));
  // A model that sleeps keeps its memory until it is replaced: a request may wake it before.
  if (memory_of(*resident.model) <= free_memory_bytes() - claimed_bytes()) {
    auto replicas = start_replicas(*resident.model, *resident.sink, [this] { await_idle(); });
    if (!replicas.ok()) {
      server_.not_replaced(model, replicas.error());
      return;
    }
    resident.replicas = *std::move(replicas);
  }
  log::info("{} is served for {} after {:.2f} s: {}", name_of(*resident.model), wish.intent,
            seconds_since(began_ns), resident.model->plan.configuration);
  server_.replaced(model, {resident.sink, resident.replicas != nullptr});
  add(std::move(resident));
}

void ReplicaLoader::add(Resident resident) {
  placements_.add(residents_.size(), resident.model->report, resident.model->load_s);
  residents_.push_back(std::move(resident));
}

std::optional<ModelLoader::ModelToMove> ReplicaLoader::choose_move(
    std::span<const ModelSample> samples) {
  return placements_.choose_move(samples, steady_now_ns());
}

void ReplicaLoader::remove_now(std::size_t model) {
  placements_.remove(model);
  residents_[model].replicas.reset();
  residents_[model] = {};
  trim();
}

}  // namespace protean

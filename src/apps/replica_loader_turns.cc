// When the work for models that come and go takes place while others answer.

#include <malloc.h>

#include <algorithm>
#include <utility>

#include "apps/replica_loader.h"
#include "base/log.h"
#include "base/units.h"

namespace protean {
namespace {

constexpr TimeNs kRest = 4;  // of the time of a step of a fingerprint, after it, under load
constexpr TimeNs kShortestRestNs = kNsPerS / 50;
constexpr TimeNs kLongestRestNs = kNsPerS;

}  // namespace

// Runs `job`. If it throws, calls `failed` with the reason.
void ReplicaLoader::do_job(const std::function<void()>& job, const Failed& failed) {
  const Status done = attempt([&] {
    job();
    return Status();
  });
  if (!done.ok()) {
    failed(done.error());
  }
  placements_.claim(claimed_bytes());
}

void ReplicaLoader::give(std::function<void()> job, Failed failed, std::string name, bool next) {
  jobs_.give([this, job = std::move(job), failed = std::move(failed)] { do_job(job, failed); },
             std::move(name), next);
}

// A short job plans nothing, and measures only what a model that wakes lacks.
void ReplicaLoader::give_short(std::function<void()> job, Failed failed) {
  jobs_.give_short(
      [this, job = std::move(job), failed = std::move(failed)] { do_job(job, failed); });
}

void ReplicaLoader::log_failure(const Error& error) {
  log::error("a change of the models in memory failed: {}", error.message);
}

// Waits before a step of a fingerprint for a moment in which no model has requests; if they go on,
// for a few times as long as the step before took, so that they lose a small share of the CPUs.
// Models that requests wake come first. Returns false if the server ends or an operator has taken
// the job back.
bool ReplicaLoader::await_turn() {
  const TimeNs rest_ns =
      std::clamp(kRest * (steady_now_ns() - stepped_ns_), kShortestRestNs, kLongestRestNs);
  const bool goes_on = jobs_.await_turn([this] { return server_.quiet().has_value(); }, rest_ns);
  stepped_ns_ = steady_now_ns();
  return goes_on;
}

// The same for a load between two of its turns, which are all as long. What is begun is loaded: at
// once if the server ends.
void ReplicaLoader::await_load_turn() {
  (void)jobs_.await_turn([this] { return server_.quiet().has_value(); }, kShortestRestNs, true);
}

// Gives freed memory back, as buffers of steps are not on pages of a pool. Threads that allocate
// wait meanwhile, so a moment without requests is preferred.
void ReplicaLoader::trim() {
  (void)attempt([this] {  // if that fails, only memory is not given back
    give(
        [this] {
          jobs_.run_in_background([this] {
            await_load_turn();
            ::malloc_trim(0);
          });
        },
        [](const Error&) {});
    return Status();
  });
}

// Returns what tells how far a change of a model's intent is.
ReplicaLoader::TellProgress ReplicaLoader::tell_change(std::size_t model) {
  return [this, model](const JobProgress& now) { server_.changing(model, now); };
}

// Tells the share of a model's weights that is loaded. Devices count alike.
LoadHooks ReplicaLoader::load_hooks(const OpenModel& model, TellProgress tell) {
  const auto devices = static_cast<double>(model.replica.sizing.devices.size());
  return {.await_turn = [this] { await_load_turn(); },
          .told =
              [tell = std::move(tell), devices, before = 0.0, last = std::int64_t{0}](
                  std::int64_t done, std::int64_t total) mutable {
                before += done < last ? 1 : 0;  // the next device
                last = done;
                const double share =
                    total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
                tell({.loaded = std::min(1.0, (before + std::min(1.0, share)) / devices)});
              }};
}

// Counts short jobs too, which load models.
Harvest ReplicaLoader::harvest(TellProgress tell) {
  return {.await_turn = [this] { return await_turn(); },
          .quiet = [this]() -> std::optional<std::uint64_t> {
            const auto requests = server_.quiet();
            return requests && !jobs_.hurries() ? std::optional(*requests + jobs_.short_jobs())
                                                : std::nullopt;
          },
          .told =
              [tell = std::move(tell)](const FingerprintProgress& now) {
                if (tell) {
                  tell({.steps = now.steps, .of_steps = now.of_steps});
                }
              },
          .goes_on = [this] { return !jobs_.closed() && !jobs_.taken_back(); }};
}

}  // namespace protean

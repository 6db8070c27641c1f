// How a model's steps are timed when an operator asks for it.

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "server/job_progress.h"
#include "server/residents.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr std::string_view to_string(ProfileJob::State state) {
  switch (state) {
    case ProfileJob::State::kWaiting:
      return "waiting";
    case ProfileJob::State::kProfiling:
      return "profiling";
    case ProfileJob::State::kDone:
      return "done";
    case ProfileJob::State::kFailed:
      return "failed";
    case ProfileJob::State::kCancelled:
      return "cancelled";
  }
  return "";
}

bool has_ended(const ProfileJob& job) {
  return job.state == ProfileJob::State::kDone || job.state == ProfileJob::State::kFailed ||
         job.state == ProfileJob::State::kCancelled;
}

}  // namespace

Checked<json::object> Residents::profile(Service& service) {
  if (loader_ == nullptr || models_.state() != ServerState::kReady) {
    return ApiError{.status = 503, .message = "the server is loading or draining: try later"};
  }
  const std::string& name = service.model().names.front();
  const auto before = profiles_.find(name);
  if (before != profiles_.end() && !has_ended(before->second)) {
    return ApiError{.status = 409,
                    .message = fmt::format("{} is being profiled: try again when GET "
                                           "/admin/profile shows it as done",
                                           name)};
  }
  const std::size_t place = place_of(service);
  profiles_[name] = {.model = place, .began_ns = clock_()};
  loader_->profile(place);
  return profile_of(service);
}

Checked<json::object> Residents::take_back_profile(Service& service) {
  const std::string& name = service.model().names.front();
  const auto found = profiles_.find(name);
  if (found == profiles_.end() || has_ended(found->second)) {
    return ApiError{.status = 409, .message = fmt::format("{} is not being profiled", name)};
  }
  found->second.taken_back = true;
  loader_->take_back_profile(found->second.model);
  return profile_of(service);
}

json::object Residents::profile_of(const Service& service) const {
  const std::string& name = service.model().names.front();
  const auto found = profiles_.find(name);
  if (found == profiles_.end()) {
    return {{"model", name}, {"state", nullptr}};
  }
  const ProfileJob& job = found->second;
  const TimeNs until_ns = has_ended(job) ? job.ended_ns : clock_();
  json::object shown{{"model", name},
                     {"state", to_string(job.state)},
                     {"fingerprint", job.progress.fingerprint},
                     {"fingerprints", job.progress.fingerprints},
                     {"steps", job.progress.steps},
                     {"of_steps", job.progress.of_steps},
                     {"discarded", job.progress.discarded},
                     {"began", (job.began_ns + service.unix_offset_ns()) / kNsPerS},
                     {"seconds", static_cast<double>(until_ns - job.began_ns) / kNsPerS}};
  if (!job.error.empty()) {
    shown["error"] = job.error;
  }
  return shown;
}

// Adds the profiling of a model, if it is under way.
void Residents::add_profile(const std::string& name, json::array& jobs) const {
  const auto found = profiles_.find(name);
  if (found == profiles_.end() || has_ended(found->second)) {
    return;
  }
  const ProfileJob& job = found->second;
  json::object shown{{"job", "profile"}, {"state", to_string(job.state)}};
  show_progress({.steps = job.progress.steps, .of_steps = job.progress.of_steps}, shown);
  if (auto* const progress = shown.if_contains("progress")) {
    progress->as_object()["fingerprint"] = job.progress.fingerprint;
    progress->as_object()["fingerprints"] = job.progress.fingerprints;
  }
  jobs.push_back(std::move(shown));
}

json::array Residents::jobs_of(const Service& service) const {
  const std::string& name = service.model().names.front();
  json::array jobs;
  add_change(name, jobs);
  add_profile(name, jobs);
  return jobs;
}

// Returns true if a model is being profiled, or waits for it.
bool Residents::profiles() const {
  return std::any_of(profiles_.begin(), profiles_.end(),
                     [](const auto& one) { return !has_ended(one.second); });
}

// Returns the job under way of the model at this place; null if the model was removed meanwhile.
ProfileJob* Residents::profile_at(std::size_t model) {
  const auto found = std::find_if(profiles_.begin(), profiles_.end(), [&](const auto& one) {
    return one.second.model == model && !has_ended(one.second);
  });
  return found == profiles_.end() ? nullptr : &found->second;
}

void Residents::profiling(std::size_t model, const ProfileProgress& progress) {
  if (ProfileJob* job = profile_at(model)) {
    job->state = ProfileJob::State::kProfiling;
    job->progress = progress;
  }
}

void Residents::profiled(std::size_t model, const Status& how) {
  if (ProfileJob* job = profile_at(model)) {
    const bool failed = !how.ok() && !job->taken_back;
    job->state = how.ok() ? ProfileJob::State::kDone
                 : failed ? ProfileJob::State::kFailed
                          : ProfileJob::State::kCancelled;
    job->error = failed ? how.error().message : "";
    job->ended_ns = clock_();
    if (failed) {
      log::error("a model is not profiled: {}", job->error);
    }
  }
}

}  // namespace protean

#include "server/residents.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/json/object.hpp>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/call/json_body.h"
#include "server/job_progress.h"

namespace protean {
namespace {

namespace asio = boost::asio;
namespace json = boost::json;

constexpr TimeNs kLeavingLookNs =
    kNsPerS / 20;  // between looks at whether a model's requests ended

constexpr std::size_t kLongestName = 256;          // bytes
constexpr std::ptrdiff_t kMostShownFailures = 32;  // of deployments

bool is_control(char letter) {
  const auto value = static_cast<unsigned char>(letter);
  return value < 0x20 || value == 0x7f;
}

constexpr std::string_view to_string(DeployJob::State state) {
  switch (state) {
    case DeployJob::State::kUnderWay:
      return "deploying";
    case DeployJob::State::kTakenBack:
      return "leaving";
    case DeployJob::State::kFailed:
      return "failed";
  }
  return "";
}

ApiError fixed_models() {
  return {.status = 503, .message = "the server is loading or draining: try later"};
}

std::vector<Service*> services_of(const std::vector<std::shared_ptr<Host>>& hosts) {
  std::vector<Service*> services;
  for (const std::shared_ptr<Host>& host : hosts) {
    services.push_back(&host->service);
  }
  return services;
}

}  // namespace

Residents::Residents(boost::asio::io_context& io, std::vector<std::shared_ptr<Host>> hosts,
                     ApiKeys keys, Clock clock)
    : clock_(std::move(clock)),
      hosts_(std::move(hosts)),
      models_(services_of(hosts_), std::move(keys)),
      timer_(io),
      load_timer_(io) {
  models_.is_placed_anew = [this](const Service& service) {
    return loader_ != nullptr && service.failure() != nullptr &&
           service.residence() == Residence::kAwake && !hosts_[place_of(service)]->intent.empty();
  };
}

Residents::~Residents() {
  for (const std::shared_ptr<Host>& host : hosts_) {
    if (host != nullptr) {
      host->service.forget_all();
    }
  }
}

void Residents::requests_ended() const {
  if (loader_ != nullptr) {
    loader_->requests_ended();
  }
}

void Residents::start(ModelLoader* loader) {
  loader_ = loader;
  for (Service* service : models_.services()) {
    admit(*service);
  }
  look();
  watch_loads();
}

void Residents::stop() {
  stopped_ = true;
  timer_.cancel();
  load_timer_.cancel();
}

// The look comes after the request that changes a service's stay has become outstanding.
void Residents::admit(Service& service) {
  service.on_stay_changed = [this] { asio::post(timer_.get_executor(), [this] { look(); }); };
}

std::size_t Residents::place_of(const Service& service) const {
  const auto found = std::find_if(hosts_.begin(), hosts_.end(), [&](const auto& host) {
    return host != nullptr && &host->service == &service;
  });
  check(found != hosts_.end(), "a service of this server has a host");
  return static_cast<std::size_t>(found - hosts_.begin());
}

bool Residents::put_to_sleep(Service& service) {
  if (loader_ == nullptr || !service.may_sleep()) {
    return false;
  }
  const std::size_t place = place_of(service);
  service.on_wanted = [this, place] { loader_->load(place); };
  service.fall_asleep();
  loader_->unload(place);
  return true;
}

void Residents::woke(std::size_t model, const Status& loaded, const std::vector<Finished>& ended) {
  if (hosts_.at(model) != nullptr) {  // else it was removed meanwhile
    hosts_[model]->service.woke(loaded, ended);
  }
  end_load(model, loaded);
  look();
}

Checked<std::string> Residents::deploy(const std::string& body) {
  if (loader_ == nullptr || models_.state() != ServerState::kReady) {
    return fixed_models();
  }
  const Checked<json::value> parsed = parse_json_body(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  const json::object* asked = std::get<json::value>(parsed).if_object();
  const json::value* named = asked == nullptr ? nullptr : asked->if_contains("name");
  if (named == nullptr || !named->is_string() || named->get_string().empty()) {
    return ApiError{.message = R"(send {"name": "NAME", "model": "MODEL"} with the flags of )"
                               R"(protean serve that differ, such as "dtype": "w8")",
                    .param = "name"};
  }
  const std::string name(named->get_string());
  if (name.size() > kLongestName || std::any_of(name.begin(), name.end(), is_control)) {
    return ApiError{.message = fmt::format("name: at most {} bytes without control characters, got "
                                           "{} bytes: choose another name",
                                           kLongestName, name.size()),
                    .param = "name"};
  }
  const auto before = deploying_.find(name);
  if (before != deploying_.end() && before->second.state == DeployJob::State::kTakenBack) {
    return ApiError{
        .status = 409,
        .message = fmt::format("the deployment of \"{}\" is being taken back: try again "
                               "when GET /admin/models shows it no more",
                               name),
        .param = "name"};
  }
  if (models_.find(name) != nullptr ||
      (before != deploying_.end() && before->second.state == DeployJob::State::kUnderWay)) {
    return ApiError{.status = 409,
                    .message = fmt::format("there is a model named \"{}\": remove it first, or "
                                           "choose another name",
                                           name),
                    .param = "name"};
  }
  json::object fields = *asked;
  const json::value* load = fields.if_contains("load");
  if (load != nullptr && !load->is_bool()) {
    return ApiError{.message = "load must be true or false; a model that is not loaded sleeps",
                    .param = "load"};
  }
  const bool loads = load == nullptr || load->get_bool();
  fields.erase("load");
  if (const Status begun = loader_->deploy(name, fields, loads); !begun.ok()) {
    return ApiError{.message = begun.error().message};
  }
  deploying_[name] = {};
  return name;
}

void Residents::loaded(std::size_t model, double seconds) {
  if (hosts_.at(model) != nullptr) {
    hosts_[model]->load_s = seconds;
  }
}

void Residents::deploying(const std::string& name, const JobProgress& progress) {
  if (const auto found = deploying_.find(name); found != deploying_.end()) {
    found->second.progress = progress;
  }
}

void Residents::deployed(std::shared_ptr<Host> host, bool loaded) {
  const std::vector<std::string>& names = host->service.model().names;
  const auto asked = deploying_.find(names.front());
  const bool taken_back =
      asked != deploying_.end() && asked->second.state == DeployJob::State::kTakenBack;
  if (asked != deploying_.end()) {
    deploying_.erase(asked);
  }
  hosts_.push_back(host);
  const auto taken = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return models_.find(name) != nullptr;
  });
  if (models_.state() != ServerState::kReady || taken_back || taken != names.end()) {
    if (taken_back) {
      log::info("the deployment of {} is taken back", names.front());
    } else if (taken != names.end()) {
      show_failure(names.front(), fmt::format("another model is named \"{}\"", *taken));
    }
    loader_->remove(hosts_.size() - 1);
    hosts_.back() = nullptr;
    return;
  }
  host->service.set_state(ServerState::kReady);
  models_.add(host->service);
  admit(host->service);
  if (!loaded) {
    put_to_sleep(host->service);
  }
  look();
}

void Residents::show_failure(const std::string& name, std::string error) {
  deploying_[name] = {
      .state = DeployJob::State::kFailed, .error = std::move(error), .failure = ++failures_};
  std::vector<std::map<std::string, DeployJob>::iterator> failed;
  for (auto job = deploying_.begin(); job != deploying_.end(); ++job) {
    if (job->second.state == DeployJob::State::kFailed) {
      failed.push_back(job);
    }
  }
  if (std::ssize(failed) > kMostShownFailures) {
    deploying_.erase(
        *std::ranges::min_element(failed, {}, [](const auto& job) { return job->second.failure; }));
  }
}

void Residents::failed(const std::string& name, const Error& error) {
  const auto asked = deploying_.find(name);
  if (asked != deploying_.end() && asked->second.state == DeployJob::State::kTakenBack) {
    log::info("the deployment of {} is taken back", name);
    deploying_.erase(asked);
    return;
  }
  log::error("{} is not deployed: {}", name, error.message);
  show_failure(name, error.message);
}

void Residents::cancel_all(const ApiError& why) {
  for (const std::shared_ptr<Host>& host : hosts_) {
    if (host != nullptr) {
      host->service.cancel_all(why);
    }
  }
}

std::optional<std::string_view> Residents::take_back(const std::string& name) {
  const auto found = deploying_.find(name);
  if (found == deploying_.end()) {
    return std::nullopt;
  }
  if (found->second.state == DeployJob::State::kFailed) {
    deploying_.erase(found);
    return "removed";
  }
  if (std::exchange(found->second.state, DeployJob::State::kTakenBack) ==
      DeployJob::State::kUnderWay) {
    loader_->take_back_deployment(name);
  }
  return "leaving";
}

Checked<std::string> Residents::remove(Service& service) {
  if (loader_ == nullptr || models_.state() != ServerState::kReady) {
    return fixed_models();
  }
  const std::string name = service.model().names.front();
  if (models_.services().size() == 1) {
    return ApiError{.status = 409,
                    .message = fmt::format("\"{}\" is the only model: deploy another one first, or "
                                           "drain the server",
                                           name)};
  }
  const std::size_t place = place_of(service);
  if (change_to_take_back(place) != nullptr) {
    loader_->take_back_replacement(place);
  }
  if (profile_at(place) != nullptr) {
    loader_->take_back_profile(place);
  }
  models_.remove(service);
  forget_change(name);
  moves_.erase(name);
  profiles_.erase(name);
  service.leave();
  loader_->leaves(place);
  leaving_.push_back(place);
  look();
  return name;
}

// Unloads the models that leave and that nothing uses any more.
void Residents::dismiss() {
  std::erase_if(leaving_, [&](std::size_t place) {
    // Whatever may still ask for the engines holds the host, as this object and the loader do.
    const Service& service = hosts_[place]->service;
    const bool unused = hosts_[place].use_count() <= 2 && service.outstanding() == 0;
    const Residence now = service.residence();
    if (!unused || (now != Residence::kAwake && now != Residence::kAsleep)) {
      return false;
    }
    const std::string& name = service.model().names.front();
    const bool is_former = models_.find(name) != nullptr;  // another configuration of it serves
    log::info("{}{} is removed", is_former ? "the former copy of " : "", name);
    loader_->remove(place);
    hosts_[place] = nullptr;
    follow(place);
    return true;
  });
}

// A model that is in use when it would be due is looked at again when it would be due next.
TimeNs Residents::next_look_ns() const {
  TimeNs first_ns =
      leaving_.empty() ? std::numeric_limits<TimeNs>::max() : clock_() + kLeavingLookNs;
  for (const Service* service : models_.services()) {
    first_ns = std::min(first_ns, service->sleep_due_ns().value_or(first_ns));
  }
  return first_ns;
}

void Residents::look() {
  if (loader_ == nullptr) {
    return;
  }
  dismiss();
  for (Service* service : models_.services()) {
    if (const auto due_ns = service->sleep_due_ns(); due_ns && *due_ns <= clock_()) {
      put_to_sleep(*service);
    }
  }
  const TimeNs next_ns = next_look_ns();
  if (next_ns == std::numeric_limits<TimeNs>::max()) {
    return;
  }
  timer_.expires_after(std::chrono::nanoseconds(std::max<TimeNs>(next_ns - clock_(), 0)));
  timer_.async_wait([this](const boost::system::error_code& cancelled) {
    if (!cancelled) {
      look();
    }
  });
}

json::array Residents::absent() const {
  json::array shown;
  for (const std::size_t place : leaving_) {
    const Service& service = hosts_[place]->service;
    if (models_.find(service.model().names.front()) != nullptr) {
      continue;  // another configuration of it serves, and intent_of() shows this one
    }
    shown.push_back({{"model", service.model().names.front()},
                     {"residence", "leaving"},
                     {"requests", service.outstanding()}});
  }
  for (const auto& [name, deployment] : deploying_) {
    json::object model{{"model", name}, {"residence", to_string(deployment.state)}};
    if (!deployment.error.empty()) {
      model["error"] = deployment.error;
    } else {
      show_progress(deployment.progress, model);
    }
    shown.push_back(std::move(model));
  }
  return shown;
}

}  // namespace protean

#include "apps/replica_loader.h"

#include <utility>

#include "apps/hand_over.h"
#include "apps/renew_files.h"
#include "apps/serve_intent.h"
#include "base/log.h"
#include "base/units.h"
#include "device/cpu/low_priority.h"
#include "host/machine.h"

namespace protean {
namespace {

double seconds_since(TimeNs began_ns) {
  return static_cast<double>(steady_now_ns() - began_ns) / static_cast<double>(kNsPerS);
}

Error failed_meanwhile(const OpenModel& model) {
  return make_error(ErrorCode::kUnavailable, "a device on which {} was placed has failed meanwhile",
                    name_of(model));
}

// The names by which jobs are taken back.
std::string deployment_job(const std::string& name) {
  return "deployment " + name;
}

std::string replacement_job(std::size_t model) {
  return fmt::format("replacement {}", model);
}

std::string profile_job(std::size_t model) {
  return fmt::format("profile {}", model);
}

}  // namespace

ReplicaLoader::ReplicaLoader(std::vector<OpenModel>& models,
                             std::vector<std::unique_ptr<Replicas>> loaded, Server& server,
                             Defaults defaults)
    : server_(server), defaults_(std::move(defaults)), placements_(defaults_.move_window_ns) {
  for (std::size_t i = 0; i < models.size(); ++i) {
    const std::shared_ptr<void> borrowed;  // the models outlive this object
    residents_.push_back(
        {std::shared_ptr<OpenModel>(borrowed, &models[i]), server.sink(i), std::move(loaded[i])});
    add_placement(i);
  }
  if (defaults_.move_window_ns > 0 && !placements_.can_move()) {
    log::warning(
        "--move-models auto moves no model until one has an --intent and --devices of 2 or more "
        "with CPUs of their own");
  }
  thread_ = std::thread([this] { jobs_.run(); });
}

ReplicaLoader::~ReplicaLoader() {
  jobs_.close();
  thread_.join();
}

OpenOptions ReplicaLoader::open_options(TellProgress tell) {
  return {.may_morph = defaults_.may_morph,
          .may_move = defaults_.move_window_ns > 0,
          .harvest = harvest(std::move(tell)),
          .turns = defaults_.turns,
          .memory = defaults_.memory};
}

// Opens a model for the devices that work and the memory that is free now. Ignores the load of the
// model at place `model`. Does not learn step costs: load_in_background() does.
Result<OpenModel> ReplicaLoader::plan(OpenOptions options, std::optional<std::size_t> model,
                                      const Open& open) {
  const auto now = [&] {
    return DevicesNow{.lost = placements_.lost(),
                      .loads = placements_.device_loads(model),
                      .unclaimed_bytes = unclaimed_bytes()};
  };
  const auto ends = [&] { return options.harvest.is_over(); };
  auto opened = plan_for_devices(now, ends, [&](const DevicesNow& devices) {
    options.lost_devices = devices.lost;
    options.device_loads = devices.loads;
    std::optional<Result<OpenModel>> found;
    jobs_.run_in_background([&] { found.emplace(open(options, devices.unclaimed_bytes)); });
    return *std::move(found);
  });
  if (jobs_.closed()) {
    return make_error(ErrorCode::kUnavailable, "the server ends");
  }
  return jobs_.taken_back() ? withdrawn() : std::move(opened);
}

Result<std::unique_ptr<Replicas>> ReplicaLoader::load_in_background(const Resident& resident,
                                                                    const TellProgress& tell) {
  std::optional<Result<std::unique_ptr<Replicas>>> replicas;
  jobs_.run_in_background([&] {
    learn_costs(*resident.model, harvest(tell));
    if (!jobs_.taken_back()) {
      replicas.emplace(
          start_replicas(*resident.model, *resident.sink, load_hooks(*resident.model, tell)));
    }
    if (jobs_.taken_back()) {
      replicas = withdrawn();
      trim();
    }
  });
  return *std::move(replicas);
}

// Returns why a model that was opened or loaded on devices that have failed meanwhile is of no use,
// and gives its memory back.
Status ReplicaLoader::drop_if_lost(Resident& resident) {
  if (!uses_lost_devices(*resident.model)) {
    return {};
  }
  Error why = failed_meanwhile(*resident.model);
  cpu::run_at_low_priority([&] {
    resident.replicas.reset();  // first: it uses the others
    resident = {};
  });
  trim();
  return why;
}

void ReplicaLoader::unload(std::size_t model) {
  give_short([this, model] { unload_now(model); },
             [this, model](const Error& error) {
               log_failure(error);
               if (residents_[model].replicas != nullptr) {
                 server_.woke(model, {});  // it never slept
               } else {
                 server_.fell_asleep(model);
               }
             });
}

void ReplicaLoader::load(std::size_t model) {
  give_short([this, model] { load_now(model); }, log_failure);
}

void ReplicaLoader::replace(std::size_t model, const IntentWish& wish) {
  give(
      [this, model, wish] {
        if (residents_[model].failure.empty()) {
          replace_now(model, wish);
        } else {
          place_anew(model, wish);
        }
      },
      [this, model](const Error& error) { fail_to_replace(model, error); }, replacement_job(model),
      wish.requests_wait);
}

void ReplicaLoader::morphed(std::size_t model, const Status& how) {
  give([this, model, how] { morphed_now(model, how); },
       [this, model](const Error& error) { fail_to_replace(model, error); },
       replacement_job(model));
}

void ReplicaLoader::profile(std::size_t model) {
  give([this, model] { profile_now(model); },
       [this, model](const Error& error) { server_.profiled(model, error); }, profile_job(model));
}

void ReplicaLoader::take_back_deployment(const std::string& name) {
  if (jobs_.take_back(deployment_job(name))) {
    server_.failed(name, withdrawn());
  }
}

void ReplicaLoader::take_back_replacement(std::size_t model) {
  if (jobs_.take_back(replacement_job(model))) {
    give_short([this, model] { fail_to_replace(model, withdrawn()); }, log_failure);
  }
}

void ReplicaLoader::take_back_profile(std::size_t model) {
  if (jobs_.take_back(profile_job(model))) {
    server_.profiled(model, withdrawn());
  }
}

void ReplicaLoader::remove(std::size_t model) {
  give_short([this, model] { remove_now(model); }, log_failure);
}

Status ReplicaLoader::deploy(const std::string& name, const boost::json::object& fields,
                             bool load) {
  auto setting = model_setting(defaults_.setting, name, fields);
  if (!setting.ok()) {
    return setting.error();
  }
  give([this, setting = *std::move(setting), load] { deploy_now(setting, load); },
       [this, name](const Error& error) { server_.failed(name, error); }, deployment_job(name));
  return {};
}

// Hosts a model that is not loaded. Makes room for it, so that add() does not fail once the server
// knows the model: both would number later models differently.
ReplicaLoader::Resident ReplicaLoader::open(OpenModel model) {
  residents_.reserve(residents_.size() + 1);
  Resident resident{std::make_shared<OpenModel>(std::move(model)), nullptr, nullptr};
  HostedModel hosted = resident.model->hosted;
  hosted.keeps = resident.model;
  resident.sink = server_.host(std::move(hosted));
  return resident;
}

// One that is not to be loaded sleeps, and claims the memory in which it wakes.
void ReplicaLoader::deploy_now(ModelSetting setting, bool load) {
  const std::string name = setting.name;
  const TimeNs began_ns = steady_now_ns();
  const TellProgress tell = [this, name](const JobProgress& now) { server_.deploying(name, now); };
  auto opened = plan(open_options(tell), std::nullopt, [&](const OpenOptions& with, auto free) {
    return open_further_model(setting, with, free);
  });
  if (!opened.ok()) {
    server_.failed(name, opened.error());
    return;
  }
  Resident resident = open(*std::move(opened));
  if (load) {
    auto replicas = load_in_background(resident, tell);
    if (!replicas.ok()) {
      server_.failed(name, replicas.error());
      return;
    }
    resident.replicas = *std::move(replicas);
    if (const Status lost = drop_if_lost(resident); !lost.ok()) {
      server_.failed(
          name, make_error(ErrorCode::kUnavailable, "{}: deploy it again", lost.error().message));
      return;
    }
  }
  log::info("{} is {} after {:.2f} s", name, load ? "deployed" : "registered",
            seconds_since(began_ns));
  server_.deployed(resident.sink, load);
  add(std::move(resident));
}

// Plans, and has the engine morph to the configuration if it can, or hands its requests over; if
// the model sleeps, it wakes in the new form. The model may be removed meanwhile, or wake.
void ReplicaLoader::replace_now(std::size_t model, const IntentWish& wish) {
  const std::shared_ptr<OpenModel> before = residents_[model].model;
  if (before == nullptr) {
    return;
  }
  const TimeNs began_ns = steady_now_ns();
  OpenOptions options = open_options(tell_change(model));
  if (wish.move) {
    options.chosen = report_of_move(*before->report, wish);
  }
  // A move takes only memory that is free, and in place its own, so that no request ever waits.
  const bool has_own = !wish.move || wish.move->in_place;
  const std::int64_t own = has_own ? memory_now(*before) : 0;
  auto opened = plan(std::move(options), model, [&](const OpenOptions& with, auto unclaimed) {
    return open_for_intent(*before, wish, with, unclaimed + own);
  });
  if (!opened.ok()) {
    fail_to_replace(model, opened.error());
    return;
  }
  server_.planned(model, opened->plan);
  Resident& resident = residents_[model];
  if (resident.model == nullptr) {
    return;
  }
  if (same_configuration(*before, *opened)) {
    before->report = opened->report;  // of the latest intent
    add_placement(model);
    server_.kept(model);
    return;
  }
  opened->load_s = before->load_s;  // until it is loaded
  auto morph = in_place(*before, *opened, unclaimed_bytes());
  Next next{wish, {}, *std::move(opened), began_ns};
  if (!morph.ok()) {
    serve_anew(model, std::move(next), morph.error().message);
    return;
  }
  next.in_place = *std::move(morph);
  before->replica.variants->keep_again();  // what is swapped in; the disk may have room again
  server_.changes(model, {next.in_place, resident.replicas != nullptr
                                             ? "weights and the size of KV change in its own memory"
                                             : "it sleeps, and wakes with other weights and KV"});
  resident.next = std::make_unique<Next>(std::move(next));
}

void ReplicaLoader::morphed_now(std::size_t model, const Status& how) {
  const std::unique_ptr<Next> next = std::move(residents_[model].next);
  if (next == nullptr) {
    return;
  }
  if (!how.ok()) {
    serve_anew(model, std::move(*next), how.error().message);
    return;
  }
  OpenModel& served = *residents_[model].model;
  served.rest = next->in_place;
  served.report = next->copy.report;
  add_placement(model);
  log::info("{} is served for {} after {:.2f} s, in place: {}", name_of(served), next->wish.intent,
            seconds_since(next->began_ns), next->copy.plan.configuration);
  server_.kept(model);
}

// Hands requests over to the model in its new configuration if that can be.
void ReplicaLoader::serve_anew(std::size_t model, Next next, const std::string& why) {
  const Resident& resident = residents_[model];
  const bool awake = resident.replicas != nullptr;
  const Status possible = check_hand_over(*resident.model, next.copy, awake);
  if (!possible.ok()) {
    serve_copy(model, std::move(next), possible.error().message);
  } else if (awake && memory_of(next.copy) > unclaimed_bytes()) {
    serve_copy(model, std::move(next), why + ", and there is no memory for both");
  } else {
    hand_over(model, std::move(next), why);
  }
}

// Loads the model next to the one that serves, whose requests and KV it takes over between two
// steps. Nothing is loaded of a model that sleeps, or fell asleep meanwhile: it wakes in the new
// configuration. It may be removed meanwhile. If it then serves on a device that has failed, which
// both configurations have, the server asks for another plan.
void ReplicaLoader::hand_over(std::size_t model, Next next, const std::string& why) {
  server_.changes(model, {.in_place = std::nullopt, .why = why, .hands_over = true});
  const auto turns_of_copy =
      std::exchange(next.copy.replica.turns, residents_[model].model->replica.turns);
  std::optional<Result<LoadedWorkers>> loaded;
  if (residents_[model].replicas != nullptr) {
    jobs_.run_in_background([&] {
      learn_costs(next.copy, harvest(tell_change(model)));
      loaded.emplace(jobs_.taken_back()
                         ? withdrawn()
                         : load_workers_of(next.copy, load_hooks(next.copy, tell_change(model))));
    });
  }
  if (jobs_.taken_back()) {
    cpu::run_at_low_priority([&] { loaded = withdrawn(); });
    trim();
  }
  if (loaded && !loaded->ok()) {
    fail_to_replace(model, loaded->error());
    return;
  }
  Resident& resident = residents_[model];
  if (resident.model == nullptr) {
    return;
  }
  if (uses_lost_devices(next.copy)) {
    cpu::run_at_low_priority([&] { loaded.reset(); });
    trim();
    plan_again(model, next.wish, failed_meanwhile(next.copy));
    return;
  }
  if (loaded && resident.replicas != nullptr) {
    const Succeeded ended = resident.replicas->succeed(**std::exchange(loaded, std::nullopt));
    if (!ended.how.ok()) {
      next.copy.replica.turns = turns_of_copy;
      fail_to_hand_over(model, std::move(next), ended);
      return;
    }
    if (ended.failed) {
      const std::string failure = lose_devices(*resident.model, *ended.failed);
      log::error("{}: {}, and takes no further models", name_of(*resident.model), failure);
      server_.changes(model,
                      {.why = fmt::format("{}; {}, so requests are computed again", why, failure),
                       .hands_over = true});
    }
  }
  cpu::run_at_low_priority([&] { loaded.reset(); });  // has workers if it fell asleep meanwhile
  trim();
  log::info("{} is served for {} after {:.2f} s, handed over: {}", name_of(*resident.model),
            next.wish.intent, seconds_since(next.began_ns), next.copy.plan.configuration);
  const bool must_leave = uses_lost_devices(next.copy);
  server_.succeeded(model, take_over(*resident.model, std::move(next.copy)), must_leave);
  add_placement(model);
}

// Loads the model next to the one that it replaces if there is memory for both.
void ReplicaLoader::serve_copy(std::size_t model, Next next, const std::string& why) {
  server_.changes(model, {std::nullopt, why});
  Resident resident = open(std::move(next.copy));
  // A model that sleeps keeps its memory until it is replaced: a request may wake it before.
  if (memory_of(*resident.model) <= unclaimed_bytes()) {
    auto replicas = load_in_background(resident, tell_change(model));
    if (!replicas.ok()) {
      fail_to_replace(model, replicas.error());
      return;
    }
    resident.replicas = *std::move(replicas);
  } else if (next.wish.move) {
    fail_to_replace(model,
                    make_error(ErrorCode::kExhausted, "the move of {} needs {} of free memory",
                               name_of(*resident.model), format_bytes(memory_of(*resident.model))));
    return;
  } else {
    jobs_.run_in_background([&] { learn_costs(*resident.model, harvest(tell_change(model))); });
    if (jobs_.taken_back()) {
      fail_to_replace(model, withdrawn());
      return;
    }
  }
  if (const Status lost = drop_if_lost(resident); !lost.ok()) {
    plan_again(model, std::move(next.wish), lost.error());
    return;
  }
  log::info("{} is served for {} after {:.2f} s: {}", name_of(*resident.model), next.wish.intent,
            seconds_since(next.began_ns), resident.model->plan.configuration);
  if (const auto& former = residents_[model].model;
      former != nullptr && !former->files->current()) {
    log::info("{}: its files were written or replaced after they were opened, and are opened again",
              name_of(*resident.model));
  }
  server_.replaced(model, {resident.sink, resident.replicas != nullptr});
  add(std::move(resident));
}

void ReplicaLoader::profile_now(std::size_t model) {
  const std::shared_ptr<OpenModel> of = residents_[model].model;
  if (of == nullptr) {
    server_.profiled(
        model, make_error(ErrorCode::kNotFound, "the model was removed or served anew: ask again"));
    return;
  }
  Status done;
  jobs_.run_in_background([&] {
    // The model's own are in use.
    const auto files = cpu::at_low_priority([&] { return open_model_files(of->asked.model); });
    if (!files.ok()) {
      done = files.error();
      return;
    }
    if (done = check_same_model(*of, *files); !done.ok()) {
      return;
    }
    const Machine machine = this_machine();
    done = profile_for_intents({.intent = {},
                                .variant_cache = of->setting.morph.variant_cache,
                                .machine = machine,
                                .device_loads = placements_.device_loads(),
                                .lost_devices = placements_.lost(),
                                .harvest = harvest()},
                               *files, of->asked.model, [&](const ProfileProgress& progress) {
                                 server_.profiling(model, progress);
                               });
  });
  server_.profiled(model, done);
}

void ReplicaLoader::add(Resident resident) {
  residents_.push_back(std::move(resident));
  const Status placed = attempt([&] {
    add_placement(residents_.size() - 1);
    return Status();
  });
  if (!placed.ok()) {
    log_failure(placed.error());  // the model serves, but its load does not count for plans
  }
}

void ReplicaLoader::remove_now(std::size_t model) {
  placements_.remove(model);
  cpu::run_at_low_priority([&] { residents_[model].replicas.reset(); });
  if (const auto& removed = residents_[model].model; removed && removed->replica.memory) {
    removed->replica.memory->leave();  // others may keep the model for a while
  }
  residents_[model] = {};
  trim();
}

}  // namespace protean

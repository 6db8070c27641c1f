#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/json/array.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "server/host.h"
#include "server/models.h"
#include "server/residence.h"

namespace protean {

// A change of a model's intent, from when it is asked for. The model's engine morphs to the
// configuration that a plan chooses, or hands its requests over to one that is loaded in it, or the
// model is opened in it and takes new requests; those begun before end where they began. A model
// whose devices have failed is planned anew for the same intent.
struct IntentChange {
  enum class State {
    kPlanning,
    kMorphing,  // the engine that serves
    kLoading,   // engines in the new configuration
    kDraining,  // the former engines, of their requests
    kDone,
    kFailed,  // what served before serves on, unless it had to go first
    kCancelled,
  };
  IntentWish wish;
  State state = State::kPlanning;
  std::size_t former = 0;               // the place of the model that is replaced
  std::optional<std::size_t> follower;  // the place of what is loaded when `former` is removed, or
                                        // that of `former` if it is loaded on other devices
  JobProgress progress;                 // of planning or loading
  IntentPlan plan;                      // empty until it is planned
  ConfigurationChange how;              // empty until it is known
  bool morphs = false;                  // the engine has begun to
  bool taken_back = false;              // by an operator, or as it gives way
  bool gives_way = false;               // to another one for its wish: devices of `former` failed
  bool must_leave = false;              // `former` serves on a device that has failed
  std::string error;                    // of kFailed
  TimeNs began_ns = 0;
  TimeNs ended_ns = 0;
};

// A model whose steps are timed, from when that is asked for.
struct ProfileJob {
  enum class State { kWaiting, kProfiling, kDone, kFailed, kCancelled };
  std::size_t model = 0;  // its place
  State state = State::kWaiting;
  ProfileProgress progress;
  bool taken_back = false;  // by an operator
  std::string error;        // of kFailed
  TimeNs began_ns = 0;
  TimeNs ended_ns = 0;
};

// A model that is being deployed, or could not be.
struct DeployJob {
  enum class State { kUnderWay, kTakenBack, kFailed };
  State state = State::kUnderWay;
  std::string error = {};     // of kFailed
  std::uint64_t failure = 0;  // of kFailed: the number of the failure, in order of time
  JobProgress progress = {};
};

// Which models of a server are in memory: lets those sleep that are not used, takes in models that
// operators deploy, and lets those go that they remove. Belongs to the io thread.
class Residents {
 public:
  // `hosts` has at least one. `keys` are those of the public port.
  Residents(boost::asio::io_context& io, std::vector<std::shared_ptr<Host>> hosts, ApiKeys keys,
            Clock clock);
  // Lets go of requests that have not ended.
  ~Residents();

  // Returns the models that serve.
  Models& models() { return models_; }

  // From now on models may sleep, come and go. The loader outlives the use of this object; null:
  // nothing changes.
  void start(ModelLoader* loader);
  void stop();
  // No engine has requests any more.
  void requests_ended() const;
  std::shared_ptr<TokenSink> sink(std::size_t model) const { return hosts_.at(model); }
  // Fails the requests of all models, also of those that leave.
  void cancel_all(const ApiError& why);

  // Begins to unload a model. Returns false if it is in use or models never sleep.
  bool put_to_sleep(Service& service);
  // Begins to deploy the model that a JSON object describes, and returns its name.
  Checked<std::string> deploy(const std::string& body);
  // Takes back a deployment, or forgets one that failed. Returns what becomes of it, "leaving" or
  // "removed"; nothing if there is none of that name.
  std::optional<std::string_view> take_back(const std::string& name);
  // Takes no more requests for a model, and removes it when those that it has have ended.
  Checked<std::string> remove(Service& service);
  // Begins to serve a model for the intent that a JSON object names, and returns intent_of().
  Checked<boost::json::object> want_intent(Service& service, const std::string& body);
  // Begins to take back a change of a model's intent whose configuration does not serve yet, and
  // returns intent_of().
  Checked<boost::json::object> take_back_intent(Service& service);
  // Returns a model's intent and how far the latest change of it is.
  boost::json::object intent_of(const Service& service) const;
  // Begins to profile a model, and returns profile_of().
  Checked<boost::json::object> profile(Service& service);
  // Begins to end the profiling of a model, and returns profile_of().
  Checked<boost::json::object> take_back_profile(Service& service);
  // Returns how far the latest profiling of a model is.
  boost::json::object profile_of(const Service& service) const;
  // Returns the jobs under way of a model that serves, a change of its intent and its profiling,
  // with their progress.
  boost::json::array jobs_of(const Service& service) const;
  // Looks at what the models have to do, and begins the move of one of them if that pays. start()
  // has this done each second.
  void look_at_loads();
  // Returns the plan that chose how the model is served.
  const IntentPlan& plan_of(const Service& service) const;
  // Returns what lists the estimates that plans of a model have kept; empty if none are kept.
  const ListConfigurations& configurations_of(const Service& service) const {
    return hosts_[place_of(service)]->configurations;
  }
  // Returns the models that do not serve: those that are being deployed or leave, and those that
  // failed.
  boost::json::array absent() const;

  // How long loading a model took last; 0 if it was never loaded.
  double load_s(const Service& service) const { return hosts_[place_of(service)]->load_s; }

  // The loader has done what it was asked for, or is on the way.
  void fell_asleep(std::size_t model) { hosts_.at(model)->service.fell_asleep(); }
  void woke(std::size_t model, const Status& loaded, const std::vector<Finished>& ended = {});
  void loaded(std::size_t model, double seconds);
  void deploying(const std::string& name, const JobProgress& progress);
  // A model that is not loaded sleeps.
  void deployed(std::shared_ptr<Host> host, bool loaded = true);
  void failed(const std::string& name, const Error& error);
  void planned(std::size_t model, const IntentPlan& plan);
  void changing(std::size_t model, const JobProgress& progress);
  void changes(std::size_t model, const ConfigurationChange& how);
  void kept(std::size_t model);
  void succeeded(std::size_t model, const ServedModel& as, bool must_leave = false);
  void replaced(std::size_t model, std::shared_ptr<Host> by, bool loaded);
  void not_replaced(std::size_t model, const Error& error);
  void profiling(std::size_t model, const ProfileProgress& progress);
  void profiled(std::size_t model, const Status& how);

 private:
  void admit(Service& service);
  // Shows a failed deployment until its name is deployed again or removed. The oldest of more than
  // 32 is dropped.
  void show_failure(const std::string& name, std::string error);
  void begin_change(Service& service, IntentWish wish);
  void watch_loads();
  bool is_settled() const;
  bool profiles() const;
  void add_change(const std::string& name, boost::json::array& jobs) const;
  void add_profile(const std::string& name, boost::json::array& jobs) const;
  int moves_of(const std::string& name) const;
  // Does what is due, and waits until something else is.
  void look();
  void dismiss();
  IntentChange* change_of(std::size_t former);
  IntentChange* change_to_take_back(std::size_t former);
  void morph(std::size_t model, const FormWish& wish);
  void look_at_morphs();
  void look_at_failures();
  std::optional<IntentWish> wish_to_place_anew(std::size_t place);
  ProfileJob* profile_at(std::size_t model);
  void end(IntentChange& change, const Status& how);
  void load_after(IntentChange& change, std::size_t place);
  void follow(std::size_t former);
  void forget_change(const std::string& name);
  void end_load(std::size_t follower, const Status& loaded);
  TimeNs next_look_ns() const;
  std::size_t place_of(const Service& service) const;

  const Clock clock_;
  std::vector<std::shared_ptr<Host>> hosts_;  // null: the model was removed
  Models models_;
  std::vector<std::size_t> leaving_;             // places of models that are removed
  std::map<std::string, DeployJob> deploying_;   // by name
  std::uint64_t failures_ = 0;                   // deployments that have failed
  std::map<std::string, IntentChange> changes_;  // the latest one, by name
  std::map<std::string, ProfileJob> profiles_;   // the latest one, by name
  std::map<std::string, int> moves_;             // that were begun without an operator, by name
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer load_timer_;
  ModelLoader* loader_ = nullptr;
  bool stopped_ = false;
};

}  // namespace protean

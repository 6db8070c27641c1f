#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "apps/placements.h"
#include "apps/served_models.h"
#include "replica/harvest.h"
#include "replica/job_queue.h"
#include "replica/replica.h"
#include "server/residence.h"
#include "server/server.h"

namespace protean {

// Loads and unloads the replicas of a server's models, one after the other, and opens models that
// are deployed while it runs. Plans and fingerprints of models that come are made in moments
// without requests, and do not delay a model that a request wakes.
class ReplicaLoader final : public ModelLoader {
 public:
  // What flags say of all models, unless a model's own fields differ.
  struct Defaults {
    ModelSetting setting;
    bool may_morph = false;
    TimeNs move_window_ns = 0;  // of the load by which models move; 0: they never move
    std::shared_ptr<SharedTurns> turns = nullptr;    // of all models
    std::shared_ptr<SharedMemory> memory = nullptr;  // of all models
  };

  // `models` and `loaded`, the replicas of each, belong to the models with which the server began.
  // The models and the server outlive this object.
  ReplicaLoader(std::vector<OpenModel>& models, std::vector<std::unique_ptr<Replicas>> loaded,
                Server& server, Defaults defaults);
  // Waits for what is under way, then unloads all models.
  ~ReplicaLoader() override;

  void unload(std::size_t model) override;
  void load(std::size_t model) override;
  Status deploy(const std::string& name, const boost::json::object& fields, bool load) override;
  void replace(std::size_t model, const IntentWish& wish) override;
  void morphed(std::size_t model, const Status& how) override;
  void forget_replacement(std::size_t model) override;
  void lose(std::size_t model, const ReplicaFailure& failure) override;
  void leaves(std::size_t model) override;
  void profile(std::size_t model) override;
  void take_back_deployment(const std::string& name) override;
  void take_back_replacement(std::size_t model) override;
  void take_back_profile(std::size_t model) override;
  void remove(std::size_t model) override;
  std::optional<ModelToMove> choose_move(std::span<const ModelSample> samples) override;
  void requests_ended() override { jobs_.look_again(); }

 private:
  // What a model is to become by a morph, and the same as it would be loaded.
  struct Next {
    IntentWish wish;
    FormWish in_place;
    OpenModel copy;
    TimeNs began_ns = 0;
  };
  using TellProgress = std::function<void(const JobProgress&)>;
  struct Resident {
    std::shared_ptr<OpenModel> model;
    std::shared_ptr<TokenSink> sink;
    std::unique_ptr<Replicas> replicas;  // null while the model sleeps
    std::unique_ptr<Next> next = {};     // null unless its engine morphs for an intent
    std::string failure = {};            // of its devices, until it has others; empty: none
    bool awaits_place = false;           // until then its requests wait
    std::vector<HeldRequest> held = {};  // requests that were accepted where it failed
    bool leaves = false;                 // no other devices are to come if its own fail
  };

  bool await_turn();
  void await_load_turn();
  void trim();
  TellProgress tell_change(std::size_t model);
  Harvest harvest(TellProgress tell = {});
  LoadHooks load_hooks(const OpenModel& model, TellProgress tell);
  OpenOptions open_options(TellProgress tell);
  using Failed = std::function<void(const Error&)>;
  void do_job(const std::function<void()>& job, const Failed& failed);
  void give(std::function<void()> job, Failed failed, std::string name = {}, bool next = false);
  void give_short(std::function<void()> job, Failed failed);
  static void log_failure(const Error& error);
  using Open =
      std::function<Result<OpenModel>(const OpenOptions& options, std::int64_t unclaimed_bytes)>;
  Result<OpenModel> plan(OpenOptions options, std::optional<std::size_t> model, const Open& open);
  bool uses_lost_devices(const OpenModel& model) const;
  Status drop_if_lost(Resident& resident);
  Result<std::unique_ptr<Replicas>> load_in_background(const Resident& resident,
                                                       const TellProgress& tell);
  void unload_now(std::size_t model);
  static Status start(Resident& resident);
  Status wake(std::size_t model);
  void load_now(std::size_t model);
  void deploy_now(ModelSetting setting, bool load);
  void replace_now(std::size_t model, const IntentWish& wish);
  static Status lost(const Resident& resident);
  void lose_now(std::size_t model, const ReplicaFailure& failure);
  void leave_devices(std::size_t model, std::string why);
  std::string lose_devices(const OpenModel& model, const ReplicaFailure& failure);
  void fail_to_wake(std::size_t model, const Error& error);
  void await_successor(std::size_t model);
  void place_anew(std::size_t model, const IntentWish& wish);
  void morphed_now(std::size_t model, const Status& how);
  void serve_anew(std::size_t model, Next next, const std::string& why);
  void hand_over(std::size_t model, Next next, const std::string& why);
  void fail_to_hand_over(std::size_t model, Next next, const Succeeded& ended);
  void plan_again(std::size_t model, IntentWish wish, const Error& why);
  void serve_copy(std::size_t model, Next next, const std::string& why);
  void fail_to_replace(std::size_t model, const Error& error);
  void profile_now(std::size_t model);
  void remove_now(std::size_t model);
  Resident open(OpenModel model);
  void add(Resident resident);
  void add_placement(std::size_t model);
  std::int64_t claimed_bytes() const;
  std::int64_t unclaimed_bytes() const;

  Server& server_;
  const Defaults defaults_;
  Placements placements_;            // of the models that serve
  std::vector<Resident> residents_;  // used by the thread alone once it runs
  TimeNs stepped_ns_ = 0;            // when await_turn() last returned
  JobQueue jobs_;
  std::thread thread_;
};

}  // namespace protean

#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "base/units.h"
#include "contract/form.h"
#include "contract/groups.h"
#include "contract/home_blocks.h"
#include "contract/model_spec.h"
#include "contract/morph.h"
#include "control/step_speed.h"
#include "cost/pages.h"
#include "engine/engine.h"
#include "fleet/dropping.h"
#include "fleet/joint_steps.h"
#include "fleet/scaling.h"
#include "fleet/station.h"
#include "ports/device_groups.h"
#include "ports/event.h"
#include "ports/token_sink.h"

namespace protean {

// So many steps at once are all of them: KV moves in one piece, to compare.
inline constexpr int kAllAtOnce = 10'000;

// What a fleet needs to group replicas.
struct GroupConfig {
  DeviceGroups* devices = nullptr;  // must outlive the fleet; null: replicas cannot be grouped
  std::string why_not = "the devices cannot join";  // if there are no `devices`
  ModelSpec spec;
  PageBudget budget;  // of each device
  // The form of each replica as loaded. If replicas have unequal memory, it is the form of one with
  // the least, and each engine has its own.
  Form form;
  // Returns the configuration of the engine that serves a group with this form.
  std::function<EngineConfig(const Form&)> wide_engine;
  // Returns the pages of each device that the KV of a group with this form leaves to others; empty:
  // none.
  std::function<std::int64_t(const Form&)> wide_reserve;
  // HoldShards steps that copy weights or move KV: so many are committed between two joint steps.
  int steps_at_once = 1;
  ScalePolicy scale = ScalePolicy::kOff;
  DropPolicy drop = DropPolicy::kOff;
  bool restores = true;  // false: `--drop paper` fetches no layers back, to compare
  // For so long policies may try to meet a shortage of KV before more replicas are wanted.
  TimeNs scaler_after_ns = 10 * kNsPerS;
  // The rate of a link over which devices receive KV and weights; 0: not known, and all KV moves.
  double kv_bytes_per_s = 0;
  int devices_on_link = 0;  // see GroupCost
  // Tokens of the longest request that a group of 2^k replicas serves; empty: what its KV holds.
  std::vector<int> longest_tokens;
};

// Returns the KV blocks of a group if its KV takes all pages that are free.
std::int64_t most_kv_blocks(const GroupConfig& config, const Form& wide);

// Returns true if a policy weighs groups against lower precision.
bool weighs(const GroupConfig& config);

// Returns the speed of a group with this engine, by what an engine of a home has learned.
StepSpeed speed_as(const EngineConfig& group, const StepSpeed& home);

// Which replicas serve as one, and how.
struct GroupForms {
  std::vector<ReplicaId> homes;  // each a replica, or a group named by its first one
  GroupBy by = GroupBy::kShards;
  Form home;                     // of each home, or if they are unequal, of the smallest
  Form wide;                     // of the group when it was formed
  std::int64_t shrunk_from = 0;  // KV blocks of each home before they shrank, if they did
  std::vector<Form> unequal;     // of each home; empty: all are equal

  std::vector<Form> home_forms() const {
    return unequal.empty() ? std::vector<Form>(homes.size(), home) : unequal;
  }
  HomeBlocks home_blocks() const;
  Form joined() const;  // when each home holds all
  // KV blocks that the homes have together without the group.
  std::int64_t blocks_apart() const {
    return unequal.empty()
               ? static_cast<std::int64_t>(homes.size()) * std::max(shrunk_from, home.kv.blocks)
               : home_blocks().total();
  }
};

// A replica or group that is to become one with others.
struct JoiningHome {
  ReplicaId replica;
  Form form;                       // at rest
  const Engine* engine = nullptr;  // that has this form; null: there will be one
};

// Returns what homes become as a group, with the forms that they go to before it. Homes of unequal
// precisions go to the first of these that there is:
//   1. the precisions that an operator chose for a home;
//   2. the highest precision of each component, if each home has KV for its requests then;
//   3. the precisions of the home with the smallest weights.
// If a device would lack pages on the way, the homes' KV shrinks. Pipelines of unequal length or
// memory keep the KV that they have; a replica counts as a pipeline of one stage. Unless an
// operator `insists`, KV in use stays, and a group for which forms change has more KV than its
// homes.
Result<GroupForms> group_forms_of(const GroupConfig& config, const std::vector<JoiningHome>& homes,
                                  GroupBy by, bool insists);

// Replicas that serve as one, with what they need to part again.
struct Group : GroupForms {
  std::unique_ptr<Engine> first;  // the engine of the first home, while the group is one
};

// Refuses to shrink a replica's KV to so many blocks for a group if its form never changes.
Status check_morphs(const Engine& engine, ReplicaId replica, std::int64_t blocks);

// Refuses it by check_morphs(), or because a request needs more, or more are in use. The latter
// only if no request may be preempted.
Status check_room(const Engine& engine, ReplicaId replica, std::int64_t blocks, bool may_preempt);

// Refuses a group for which the KV of its homes shrinks, by check_room() of each home that serves
// now. Unless an operator `insists`, also refuses one that would have no more KV blocks than its
// homes had before.
Status check_shrunk(const GroupConfig& config, const std::vector<Station>& stations,
                    const GroupForms& group, bool insists);

// Takes replicas to one group, or a group to its replicas, while their requests go on (AMOEBA
// section 3.2, KunServe section 4). At each moment the devices hold a legal form; the direction may
// change at any.
//
//   together: the forms come to rest and no KV migrates; the homes come to equal precisions, and
//     KV shrinks if a device lacks pages for the way; the engines' steps end; join(). The engines
//     go on with joint steps. HoldShards steps are prepared in the background and committed between
//     joint steps. When attention has one copy, the steps end; unify(); the requests of all engines
//     go to one new engine, under the first replica's id.
//   apart: the group's engine goes back to the form with which it began, and no KV migrates; its
//     steps end; each request gets a home and its blocks are moved there; divide(). The engines go
//     on with joint steps; HoldShards steps fetch what they lack; the steps end; part().
//
// KV that is computed again in less time than it moves is given up before any moves (moving_kv.h);
// its requests, and all that hold no KV, wait until no KV is left to move or the direction changes.
//
// A step that fails turns the direction once, and is tried again later after that. Single-threaded;
// all that it refers to must outlive it.
class Regrouping {
 public:
  // Takes replicas together. `forms` are those of homes whose engines never change theirs.
  Regrouping(const GroupConfig& config, std::vector<Station>& stations, TokenSink& sink,
             Group group, std::vector<Form> forms);
  // Takes a group apart.
  Regrouping(const GroupConfig& config, std::vector<Station>& stations, TokenSink& sink,
             Group group);

  // Names the ids of morph steps, which are larger than those of any engine, and of all before.
  static bool owns(MorphId id) { return id.value >= kFirstId; }

  void begin(std::string reason, std::uint64_t& generation, TimeNs now_ns);
  // Changes the direction. With `insists`, requests that find no room in a home are preempted.
  void turn(bool together, const std::string& why);
  void insist(bool insists) {
    haste_ = broken() ? haste_ : insists ? Haste::kPreempts : Haste::kWaits;
  }
  // Returns true if an operator asked for the change, or devices have failed.
  bool hurries() const { return haste_ != Haste::kWaits; }
  // Devices of a home have failed: all KV is lost. Takes the group apart without a step, fetching
  // what devices dropped, and lets no home serve until it has parted. The engines must have given
  // up their requests.
  void break_up(const std::string& why);
  // Returns true while the homes' devices depend on each other.
  bool joined() const { return joint_ != nullptr || wide_serves(); }
  // Returns true while devices change what they hold between two steps.
  bool committing() const { return !committed_.empty(); }

  void on(const MorphReady& ready, TimeNs now_ns);
  // Returns true if the step is one of this change.
  bool on(const MorphDone& done, TimeNs now_ns);
  void step_done(ReplicaId replica, TimeNs now_ns);  // before its engine is told
  // Does what can be done now. Must be called after each event.
  void advance(TimeNs now_ns);

  std::optional<TimeNs> next_deadline_ns() const;
  bool ended() const { return stage_ == Stage::kEnded; }
  bool together() const { return together_; }
  // Returns true while the group serves until its homes have room for its requests.
  bool waits_to_part() const { return stage_ == Stage::kShrinking && !together_; }
  bool concerns(ReplicaId replica) const;
  const Group& group() const { return group_; }
  Group take_group() { return std::move(group_); }
  // Returns true if the change has failed in both directions, and is tried again later.
  bool stuck() const { return stage_ == Stage::kMoving && wait_.attempts > 0; }
  // Returns why the change failed or was ordered back since the last call; nothing if it was not.
  std::optional<std::string> take_failure() { return std::exchange(news_.failure, std::nullopt); }
  // Returns the requests that other replicas have now, and forgets them.
  std::vector<std::pair<RequestId, ReplicaId>> take_moved() {
    return std::exchange(news_.moved, {});
  }
  const RegroupRecord& record() const { return record_; }
  // True while the homes' engines run joint steps, each with its own requests.
  bool joint() const { return joint_ != nullptr; }
  const Form& form() const { return form_; }
  std::string stage() const;
  const std::string& waits_for() const { return wait_.reason; }

 private:
  static constexpr std::uint64_t kFirstId = std::uint64_t{1} << 63;
  enum class Stage {
    kSettling,   // together: forms come to rest
    kJoining,    // together: steps end
    kMoving,     // joint steps, while shards are dropped or fetched
    kUnifying,   // together: joint steps end
    kShrinking,  // apart: the group's form goes back to what the homes can have
    kDividing,   // apart: the group's steps end
    kParting,    // apart: joint steps end
    kEnded,
  };
  struct Wait {
    std::string reason;
    TimeNs until_ns = 0;
    int attempts = 0;              // in a row
    std::int64_t preemptions = 0;  // of the homes, without those that the record counts already
    bool for_kv = false;           // requests that gave up theirs wait until no more moves
  };
  struct News {  // that was not taken yet
    std::vector<std::pair<RequestId, ReplicaId>> moved;
    std::optional<std::string> failure;
  };
  struct Lead {  // of the homes to the forms with which they become one
    std::vector<Form> from;
    std::optional<GroupForms> to;  // nothing: they stay as they are
  };
  struct Step {
    MorphId id;
    MorphStep step;
    bool ready = false;
  };

  Station& at(ReplicaId replica) { return stations_[static_cast<std::size_t>(replica.value)]; }
  Engine& engine(std::size_t home) { return *at(group_.homes[home]).engine; }
  Engine& wide() { return engine(0); }
  ReplicaId first() const { return group_.homes.front(); }
  std::size_t count() const { return group_.homes.size(); }
  bool broken() const { return haste_ == Haste::kBroken; }
  bool wide_serves() const { return stage_ == Stage::kShrinking || stage_ == Stage::kDividing; }
  const Form& target() const { return together_ ? group_.wide : joined_; }

  void settle();
  std::optional<Error> agree();
  std::optional<Error> lead_homes(GroupForms group_forms);
  std::optional<Error> compare_homes() const;
  bool restore_home(std::size_t home);
  void count_preempted();
  std::int64_t preemptions() const;
  void join();
  void begin_joint_steps();
  void join_executors();
  void move();
  void plan();
  void prepare();
  void commit();
  void count_bytes(const HoldShards& hold, const std::vector<std::vector<BlockId>>& live);
  void unify();
  void shrink();
  bool at_home_form();
  void divide();
  void part();
  void go_back_to_moving();
  void give_up_kv();
  void compute_again();
  std::vector<Copy> home_devices() const;
  struct LinkTimes;
  LinkTimes link_times(const std::vector<std::int64_t>& live) const;
  void let_homes_go_on();
  void end();
  bool all_quiet() const;
  void hold_all();
  void try_later(const std::string& why, TimeNs within_ns);

  const GroupConfig& config_;
  std::vector<Station>& stations_;
  TokenSink& sink_;
  Group group_;
  bool together_;
  enum class Haste : std::uint8_t {
    kWaits,     // until each request has room in a home
    kPreempts,  // requests without room
    kBroken,    // the requests are gone, and no home serves until all have parted
  };
  Haste haste_ = Haste::kWaits;
  bool asked_ = false;  // the group's engine for the homes' form
  Stage stage_;
  RegroupRecord record_;
  Wait wait_;
  Lead lead_;
  Form form_;    // of joined devices, after the steps committed so far
  Form joined_;  // when each home holds all
  std::unique_ptr<JointSteps> joint_;
  std::deque<MorphStep> steps_;  // not begun
  std::vector<Step> preparing_;  // committed together
  std::vector<MorphId> committed_;
  News news_;
  std::uint64_t* generation_ = nullptr;
  TimeNs now_ns_ = 0;
};

}  // namespace protean

#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/replica_id.h"
#include "contract/groups.h"
#include "contract/migrations.h"
#include "contract/morph.h"
#include "contract/observation.h"
#include "contract/replicas_wanted.h"
#include "cost/pages.h"
#include "server/recent_lengths.h"

namespace protean {

// What the replicas of one model's fleet reported last: their loads and forms, their groups, and
// the lengths of their answers. Belongs to the io thread.
class FleetReport {
 public:
  // `start` is the form of each replica before it reports one.
  FleetReport(int replicas, const FormStatus& start);

  void engine(ReplicaId replica, const Observation& seen) { seen_[index(replica)] = seen; }
  void form(ReplicaId replica, std::shared_ptr<const FormStatus> status) {
    forms_[index(replica)] = std::move(status);
  }
  void groups(std::shared_ptr<const GroupsStatus> status);
  // The only replica has other devices. `start` is its form if it is not `loaded`;
  // otherwise it reports it.
  void become(const FormStatus& start, bool loaded);

  void replicas_wanted(const ReplicasWanted& wanted) { wanted_ = wanted; }
  void migrations(const Migrations& now) { migrations_ = now; }
  // A request has got its whole answer.
  void answered(int prompt_tokens, int tokens) { lengths_.add(prompt_tokens, tokens); }

  int replicas() const { return static_cast<int>(seen_.size()); }
  // What a replica for which another one serves reported last, without load and without KV.
  Observation seen(ReplicaId replica) const;
  const FormStatus& form(ReplicaId replica) const { return *forms_[index(replica)]; }
  // Nothing before the fleet has begun.
  const std::optional<ReplicasWanted>& replicas_wanted() const { return wanted_; }
  const Migrations& migrations() const { return migrations_; }
  const RecentLengths& answer_lengths() const { return lengths_; }
  // Null if the replicas cannot be grouped.
  const GroupsStatus* groups() const { return groups_.get(); }

  // Returns the groups, each with the form and the use of devices that its engine reported last.
  // Requires groups().
  GroupsStatus groups_now() const;

  // Returns the load of the fleet: of the replicas that serve.
  Observation sum() const;

  // Replicas whose devices hold one form together. While replicas merge or split, they are in
  // one of these although each may serve on its own.
  struct Holders {
    std::vector<ReplicaId> replicas;  // at least one, ascending
    Form form;
  };
  std::vector<Holders> holders() const;
  // Returns for each replica the one that serves for it: itself, or the first one of its group.
  const std::vector<ReplicaId>& serving() const { return serving_; }

 private:
  static std::size_t index(ReplicaId replica) { return static_cast<std::size_t>(replica.value); }
  std::vector<ReplicaId> replicas_of(const RunningRegroup& change) const;
  std::vector<ReplicaId> serving_now() const;

  std::size_t devices_each_;
  std::vector<Observation> seen_;                         // by replica
  std::vector<std::shared_ptr<const FormStatus>> forms_;  // by replica; never null
  std::shared_ptr<const GroupsStatus> groups_;
  std::vector<ReplicaId> serving_;
  std::optional<ReplicasWanted> wanted_;
  Migrations migrations_;
  RecentLengths lengths_;
};

// Shows the replicas of a fleet by their numbers: the form's status for each replica that serves,
// and for the others which replica serves for them.
boost::json::object shown_replicas(const FleetReport& fleet);

using PagesByDevice = std::function<std::vector<DevicePages>(const Form&)>;

// Shows the devices of a fleet by their numbers, which go on from replica to replica: their replica
// and what their pages hold.
boost::json::object shown_devices(const FleetReport& fleet, const PagesByDevice& pages);

}  // namespace protean

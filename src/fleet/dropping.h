#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/replica_id.h"
#include "base/result.h"
#include "base/units.h"
#include "contract/groups.h"

namespace protean {

// Whether replicas drop layers that others hold while their KV caches are short.
enum class DropPolicy : std::uint8_t {
  kOff,
  kPaper,     // KunServe section 4.1
  kReleased,  // the vote of KunServe's released code
  kJoint,     // if it is predicted to pay
};

std::string_view to_string(DropPolicy policy);
// Reads the value of --drop. Fails with an error that lists all values.
Result<DropPolicy> parse_drop(std::string_view name);

// A replica or group as the policy sees it. One that changes counts with the KV that it will have:
// replicas that become a group are one candidate, and so is a group that parts.
struct DropCandidate {
  std::vector<ReplicaId> replicas;  // ascending
  bool by_layers = false;           // a group that has dropped layers
  bool settled = true;              // neither its group nor its form changes
  std::int64_t kv_blocks = 0;
  std::int64_t kv_blocks_used = 0;
  std::int64_t kv_blocks_awaited = 0;         // blocks that queued requests need
  int waiting = 0;                            // queued requests
  std::int64_t whole_kv_blocks = 0;           // blocks of the parts it splits into together
  std::vector<std::vector<ReplicaId>> homes;  // the replicas of each part
  std::int64_t home_kv_blocks = 0;            // of one of the parts
  std::int64_t largest_need = 0;              // blocks of its longest request when that ends
};

// What the devices of a settled candidate hold.
struct DropHolding {
  std::size_t candidate = 0;      // index
  int kind = 0;                   // equal for those that may become one group
  int stages = 1;                 // of its pipeline; 1: each of its devices has all layers
  int layers = 0;                 // of the model
  std::int64_t layer_bytes = 0;   // pages of the weights of all layers
  std::int64_t memory_bytes = 0;  // of a stage on average, for layers and KV
};

// Returns the blocks that queued requests need beyond those that are free; less than 0 if some stay
// free. What is free in a candidate counts as far as it holds whole requests of the mean size.
std::int64_t blocks_lacking(std::span<const DropCandidate> candidates);

// Returns the groups that drop as much as queued requests lack KV; as much as there is if that is
// less. Nothing if no request lacks KV, or nothing can be dropped. Of a kind, the two of fewest
// stages become one, again and again (figure 6); kinds with small candidates come first. Those
// without a holding here stay as they are.
std::optional<GroupWish> choose_drop(std::span<const DropCandidate> candidates,
                                     std::span<const DropHolding> holdings,
                                     std::int64_t block_bytes);

// Returns a settled group that is to part: what is in use and awaited in it is below 50 % of what
// its parts have together (section 4.4), each of its requests fits one of them, and no queued
// request lacks KV once it has parted. A group of groups parts into these first.
std::optional<GroupWish> choose_restore(std::span<const DropCandidate> candidates);

// The rule of KunServe's released code, which is not the paper's. Replicas vote to drop if their
// demand is 95 % of their KV and their queued requests need at least what is free. Groups by layers
// vote to restore if they have no queued request, at most half of the KV that their replicas have
// without a drop is in use, and their demand has fallen over the latest 30 samples, one every half
// second. A vote is carried by half of those that may vote, rounded down, but at least one. Then
// all drop, each with its neighbour of equal size, or all restore.
class DropVote {
 public:
  // Returns the groups that form or part; nothing if no vote is carried, or the latest one was less
  // than a tenth of a second ago.
  std::optional<GroupWish> vote(std::span<const DropCandidate> candidates, TimeNs now_ns);

  // Returns when to vote again although nothing has happened; nothing if only events can change
  // the outcome.
  std::optional<TimeNs> next_ns() const;

 private:
  struct Group {
    std::vector<ReplicaId> replicas;
    std::deque<std::int64_t> demand;  // samples in blocks, the oldest first
  };

  void sample(std::span<const DropCandidate> candidates, TimeNs now_ns);
  bool wants_restore(const DropCandidate& candidate) const;

  std::vector<Group> groups_;  // by layers
  TimeNs next_vote_ns_ = 0;
  TimeNs next_sample_ns_ = 0;
};

}  // namespace protean

#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "base/result.h"
#include "base/units.h"
#include "contract/groups.h"
#include "contract/morph.h"
#include "fleet/copied_blocks.h"
#include "fleet/station.h"
#include "ports/event.h"
#include "ports/kv_exchange.h"
#include "ports/token_sink.h"
#include "scheduler/scheduler.h"

namespace protean {

// Lets another executor, with an engine of its own, succeed that of a fleet's only replica
// (iServe's re-placement without a restart). While steps go on, blocks that are full are copied, in
// chunks, once or again if their content has changed since. When few are left, the engine starts no
// step any more; once it is quiet, the rest is copied, the other engine absorbs all requests,
// counters and cached blocks, and steps go on there. If its KV has fewer blocks, the last sequences
// are computed again. Cached blocks go over if the weights' precisions stay the same (invariant 5).
// Until the switch, nothing has changed for the former engine but that its form is held.
// If the former executor's devices have failed, all requests are computed again.
// Single-threaded; all that it refers to must outlive it.
class Succession {
 public:
  // The station is the first one. Without an exchange, nothing succeeds it.
  Succession(std::vector<Station>& stations, KvExchange* exchange, TokenSink& sink)
      : stations_(stations), exchange_(exchange), sink_(sink) {}

  // Sets the form of the replica as loaded.
  void serves(Form loaded) { loaded_ = std::move(loaded); }

  // Begins, or returns why it cannot. Must not be running.
  Status begin(const Member& by, ReplicaId as, TimeNs now_ns);
  // An event of the executor that is to succeed. Others than the end of a copy and a failure are
  // ignored.
  void on(const Event& event);
  // Does what can be done. Must be called after each event.
  void advance(TimeNs now_ns);
  // The former's devices have failed, and its engine has given up its requests, which are to be
  // adopted afterwards. Returns false if nothing succeeds it.
  bool replace_failed(const ReplicaFailure& failure, TimeNs now_ns);
  // Replaces devices that failed before. No succession may be running.
  void replace(const Member& by, ReplicaFailure failure, TimeNs now_ns);

  // Says whether another executor is to succeed one whose devices have failed.
  void await(bool awaits) { awaits_ = awaits; }
  // Returns true if the devices of a fleet's only replica have failed and others are to come.
  bool is_awaited() const { return awaits_ && stations_.size() == 1 && !station().failure.empty(); }

  // The fleet has seen no event for `idle_ns`. Ends if the devices that copy are late.
  void watch(TimeNs idle_ns, TimeNs now_ns);
  // Returns for how long no look is needed; nothing if no copy is watched.
  std::optional<TimeNs> look_within_ns() const;

  bool running() const { return stage_ != Stage::kNone; }
  std::optional<Status> take_ended() { return std::exchange(ended_, std::nullopt); }
  // Returns the failure of devices that has ended the latest succession, once: of the former's if
  // it ended well, else of those that were to succeed.
  std::optional<ReplicaFailure> take_failed() { return std::exchange(failed_, std::nullopt); }
  // Returns the timeout of the devices that have succeeded, once.
  std::optional<TimeNs> take_timeout_ns() { return std::exchange(timeout_ns_, std::nullopt); }

 private:
  enum class Stage { kNone, kSettling, kCopying, kPausing, kLastCopy };

  Station& station() const { return stations_.front(); }
  Engine& former() const { return *station().engine; }
  bool copies() const { return copy_.since_ns >= 0; }
  bool keeps_cached() const;
  Status check_requests() const;
  std::vector<HeldBlock> held() const;
  bool copy_next(TimeNs now_ns);
  void copy_rest(TimeNs now_ns);
  void copy(std::vector<BlockMove> moves, TimeNs now_ns);
  void copied(TimeNs now_ns);
  void hand_over(TimeNs now_ns);
  void install(EngineState state, TimeNs now_ns);
  void end(Status how);
  void fail_devices(const std::string& why, TimeNs now_ns);
  void fail(const Error& why, TimeNs now_ns);

  std::vector<Station>& stations_;
  KvExchange* const exchange_;
  TokenSink& sink_;
  Form loaded_;
  Member by_;
  ReplicaId as_;
  Stage stage_ = Stage::kNone;
  CopiedBlocks blocks_;
  std::deque<HeldBlock> round_;  // to be copied before the others are looked at again
  int rounds_ = 0;
  struct {
    CopyId id;
    TimeNs since_ns = -1;  // -1: none is in flight
    std::vector<BlockId> lent;
  } copy_;
  std::uint64_t copies_total_ = 0;
  bool awaits_ = false;
  std::optional<Status> ended_;
  std::optional<ReplicaFailure> failed_;
  std::optional<TimeNs> timeout_ns_;
};

}  // namespace protean

#pragma once

#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/units.h"
#include "contract/morph.h"
#include "engine/engine.h"

namespace protean {

// Moves one request that decodes from one engine to another with its KV (Llumnix, OSDI 2024,
// section 4.2). Blocks that are full are copied in stages while the request goes on. When few are
// left, it pauses after its step, the last blocks are copied, and the other engine adopts it. If
// that engine computes a long step, a first copy waits for the step while the request goes on; the
// steps that follow are short. Until it is adopted, the request belongs to its first engine: it may
// end, be cancelled or be preempted there, and the migration is then called off. Engines outlive
// it.
class LiveMigration {
 public:
  LiveMigration(RequestId request, Engine& from, Engine& to)
      : request_(request), from_(from), to_(to) {}

  // Each of the following returns the blocks to copy next, whose end copied() must be told. If it
  // returns nothing, either ended() is true or the request's step is waited for.

  // Ends at once if the request does not decode or the other engine has no room for it.
  std::optional<std::vector<BlockMove>> begin(TimeNs now_ns);
  std::optional<std::vector<BlockMove>> copied(TimeNs now_ns);
  // The first engine has handled an event.
  std::optional<std::vector<BlockMove>> source_advanced(TimeNs now_ns);

  // Ends, because the devices of one of the engines have failed. Must be called before its requests
  // are given up; the end of a copy need not be told any more.
  void forget(TimeNs now_ns);

  bool ended() const { return stage_ == Stage::kAdopted || stage_ == Stage::kCalledOff; }
  bool adopted() const { return stage_ == Stage::kAdopted; }
  // Returns true while copied() is to be told.
  bool copies() const { return !lent_.empty(); }
  RequestId request() const { return request_; }

 private:
  enum class Stage { kCopying, kPausing, kLastCopy, kAdopted, kCalledOff };

  std::optional<Scheduler::Decoding> still_decoding() const;
  std::optional<std::vector<BlockMove>> next(TimeNs now_ns);
  std::optional<std::vector<BlockMove>> copy_until(std::size_t end, TimeNs now_ns);
  void return_loan(TimeNs now_ns);
  void call_off(TimeNs now_ns);
  void hand_over(TimeNs now_ns);

  const RequestId request_;
  Engine& from_;
  Engine& to_;
  Stage stage_ = Stage::kCopying;
  int preemptions_ = 0;            // preemptions of the request before the migration began
  std::vector<BlockId> lent_;      // blocks that from_ lends to the copy that runs
  std::vector<BlockId> received_;  // in to_: the copies of the sequence's first blocks
};

}  // namespace protean

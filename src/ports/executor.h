#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "contract/device_use.h"
#include "contract/morph.h"
#include "contract/step.h"

namespace protean {

// Runs steps in order and reports each exactly once as a StepDone event. All calls return at once.
// `worker` implements it with real memory and kernels, `sim` with a model of them.
//
// A morph step is prepared in the background and committed between two steps: steps started before
// the commit run in the old form, steps started after it in the new one. One MorphReady answers
// prepare(), and one MorphDone answers commit(), which may only follow a MorphReady without a
// failure. Several morph steps may be in flight.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void start(StepPlan plan) = 0;

  // Takes the memory that the step needs and fills it. A larger KV cache has its blocks when it is
  // ready, and commit() only publishes them. A smaller one has nothing to prepare.
  virtual void prepare(MorphId id, const MorphStep& step) = 0;
  // Applies a step that is ready. Plans started later must not name a block that it takes away.
  virtual void commit(MorphId id) = 0;
  // Gives up a step that is not committed. An event of it may be on its way, none follows.
  virtual void abort(MorphId id) = 0;
  // Copies blocks between two steps. The next step waits for it, so callers move few at a time.
  virtual void move_blocks(std::vector<BlockMove> moves) = 0;

  // Sets the number of pages that each of its devices has. Returns false and changes nothing if too
  // few pages are free for a smaller number, or if its memory cannot change.
  virtual bool set_quota(std::int64_t /*pages*/) { return false; }

  // Returns how steps have used its devices, or those of the group that it leads.
  virtual DeviceUse use() const { return {}; }

  // Returns true if one of its devices computes or copies now, rather than waiting for devices of
  // other executors: if nothing has ended for long, it is the one that hangs.
  virtual bool holds_up() const { return true; }
  // Returns true while a device of its group waits for its turn on CPUs that models share: nothing
  // can end meanwhile, and no device is to blame.
  virtual bool awaits_turn() const { return false; }
  // Returns a number that grows with each piece of work of the morph steps that its own devices
  // prepare; nothing if they prepare none. If it stays the same for long, one of them hangs.
  virtual std::optional<std::uint64_t> pieces_prepared() const { return std::nullopt; }
  // Returns those of its own devices that have lost memory, or if none has, that hold up others, by
  // their place in its form; empty: that is not known.
  virtual std::vector<int> failing_devices() const { return {}; }
  // Gives up its devices, which have failed. No device of another executor waits for them or reads
  // what they hold, they do nothing more, and no StepDone of them follows. A group goes on with
  // what the other devices hold: steps that it has started have no results; morph steps succeed
  // without an answer of the failed devices.
  virtual void give_up() {}
};

}  // namespace protean

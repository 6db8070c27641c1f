#pragma once

#include <vector>

#include "base/ids.h"
#include "contract/morph.h"
#include "contract/step.h"

namespace protean {

// Runs steps, in order, and reports each exactly once as a StepDone event. All calls return at
// once. The worker is the real one, sim has a modelled one.
//
// A step of a morph is prepared beside running steps, then committed between two of them: steps
// started before the commit run in the old form, steps started after it in the new one. prepare()
// is answered by one MorphReady, with a failure if it cannot be, and then nothing has changed;
// commit() of what is ready, by one MorphDone. Several may be under way.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void start(StepPlan plan) = 0;

  // Gets the memory for it and fills it. A larger KV cache is there once it is ready; its commit
  // only makes it official. A smaller one has nothing to prepare.
  virtual void prepare(MorphId id, const MorphStep& step) = 0;
  // No block that a commit takes away may be in a plan started later.
  virtual void commit(MorphId id) = 0;
  // Gives up what is not committed; no event of it follows, though one may be on its way.
  virtual void abort(MorphId id) = 0;
  // Copies blocks between two steps, so not many at a time.
  virtual void move_blocks(std::vector<BlockMove> moves) = 0;
};

}  // namespace protean

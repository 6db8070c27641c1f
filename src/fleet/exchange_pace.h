#pragma once

#include <algorithm>

#include "base/units.h"
#include "control/predict.h"

namespace protean {

// How many layers of attention may pass to other devices between two joint steps: as many as
// exchange their KV in the longest time that a step may take during a morph. So long exchanges
// alternate with steps (KunServe section 4.2), and requests that decode wait no longer for a chunk
// of KV than for a step with prompts, while those that wait for a group's KV cache get it in few
// steps. Learns the time of a layer from the change itself. Times never decrease.
class ExchangePace {
 public:
  // A joint step was started while none was in flight.
  void step_begun(TimeNs now_ns) { free_ns_ = layers_ == 0 ? now_ns : free_ns_; }
  // A joint step has ended.
  void step_done(TimeNs now_ns) { free_ns_ = now_ns; }
  // Steps of a morph were given to the devices. `layers` of them move a layer's KV.
  void committed(int layers, bool steps_in_flight, TimeNs now_ns) {
    layers_ = layers;
    free_ns_ = steps_in_flight ? free_ns_ : now_ns;
  }
  // The last one of them was done.
  void morph_done(TimeNs now_ns) {
    if (layers_ > 0) {
      layer_ns_ = std::max<TimeNs>(1, (now_ns - free_ns_) / layers_);
    }
    layers_ = 0;
    free_ns_ = now_ns;
  }

  // Returns the layers that may move next, at most `most`. `steps`: some are in flight or wait;
  // else no activations do.
  int layers(int most, bool steps) const {
    if (!steps) {
      return most;
    }
    return layer_ns_ == 0 ? 1 : static_cast<int>(std::clamp<TimeNs>(kChunkNs / layer_ns_, 1, most));
  }

 private:
  static constexpr auto kChunkNs = static_cast<TimeNs>(kShortStepS * kNsPerS);

  TimeNs free_ns_ = 0;   // when the devices ended what they did last, or began to do more
  TimeNs layer_ns_ = 0;  // in which a layer's KV moved; 0: not known
  int layers_ = 0;       // under way
};

}  // namespace protean

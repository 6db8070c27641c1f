#pragma once

#include <cstdint>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "base/units.h"
#include "ports/event.h"

namespace protean {

inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

// Future events. Those of the same time come in the order in which they were pushed.
class EventHeap {
 public:
  void push(Event event) { heap_.push({std::move(event), ++last_order_}); }
  Event pop() {
    Event event = heap_.top().event;
    heap_.pop();
    return event;
  }
  bool empty() const { return heap_.empty(); }
  TimeNs next_ns() const { return empty() ? kNever : heap_.top().event.at_ns; }

 private:
  struct Scheduled {
    Event event;
    std::uint64_t order;
    bool operator<(const Scheduled& other) const {
      return std::pair(event.at_ns, order) > std::pair(other.event.at_ns, other.order);
    }
  };
  std::priority_queue<Scheduled> heap_;
  std::uint64_t last_order_ = 0;
};

}  // namespace protean

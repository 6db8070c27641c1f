#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/units.h"
#include "ports/event.h"
#include "server/residence.h"

namespace protean {

// The way from a model's service to its engines, which may be out of memory: the model sleeps.
// Events for a model that is not awake are kept, in their order, until it is. Belongs to the io
// thread.
class EngineInbox {
 public:
  // The inbox outlives this object. The model is awake.
  EngineInbox(BoundedQueue<Event>& inbox, Clock clock)
      : inbox_(inbox), clock_(std::move(clock)), used_ns_(clock_()) {}

  // Gives an event to the engines, or keeps it. try_tell() returns false if the inbox is full.
  bool try_tell(Event event);
  void tell(Event event);
  // Notes that the model was in use until now.
  void use() { used_ns_ = clock_(); }
  // When something was last sent to the engines, or use() was called.
  TimeNs used_ns() const { return used_ns_; }
  // When the engines were last unloaded; 0: they never were.
  TimeNs unloaded_ns() const { return unloaded_ns_; }

  Residence residence() const { return residence_; }
  void fall_asleep();  // from awake
  void fell_asleep();  // the engines are unloaded; wakes if events are kept or wake() was called
  void wake();         // from asleep or falling asleep, in which case it wakes afterwards
  // The engines are loaded: gives them `first`, then what was kept.
  void woke(std::vector<Event> first = {});
  void failed_to_wake();  // drops what was kept; the model sleeps

  // How long the engines are to stay in memory without use, if that was asked for. Reset when they
  // fall asleep.
  std::optional<TimeNs> stay_ns;
  // The wishes of operators that were in effect when the engines fell asleep.
  std::vector<std::pair<ReplicaId, FormWish>> standing;
  // The form of quiet times that an intent gave the engines; nothing: that in which they are
  // loaded.
  std::optional<FormWish> rest;
  // Called after each change. kWaking asks for the engines to be loaded.
  std::function<void(Residence)> on_change;

 private:
  void become(Residence residence);
  void keep(Event event);

  BoundedQueue<Event>& inbox_;
  const Clock clock_;
  TimeNs used_ns_;
  TimeNs unloaded_ns_ = 0;
  Residence residence_ = Residence::kAwake;
  std::vector<Event> kept_;
  bool wanted_ = false;  // to wake as soon as the engines are unloaded
};

}  // namespace protean

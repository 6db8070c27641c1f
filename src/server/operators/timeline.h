#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/replica_id.h"
#include "base/units.h"
#include "contract/morph.h"
#include "contract/observation.h"

namespace protean {

// Counts durations in classes that are a tenth wide, so that counts of two spans can be added and
// quantiles of both together be read. Takes memory for the classes between the least and the
// greatest only.
class DurationCounts {
 public:
  void add(TimeNs duration_ns);
  void add(const DurationCounts& more);
  bool empty() const { return counts_.empty(); }
  // Returns the middle of the class that holds the quantile `q`. Not empty.
  TimeNs quantile(double q) const;

 private:
  void widen(std::size_t first, std::size_t last);

  std::size_t first_ = 0;  // the class of counts_[0]
  std::vector<std::uint32_t> counts_;
};

// What one replica did in a span of time. Gauges are the highest values seen in it.
struct ReplicaSlot {
  bool serves = true;  // state at the end; false: another replica serves for it
  int running = 0;
  int waiting = 0;
  std::int64_t kv_blocks_used = 0;
  std::int64_t kv_blocks = 0;  // number at the end
  std::int64_t output_tokens = 0;

  void see(const Observation& seen);
  // Adds a slot that follows this one.
  void add(const ReplicaSlot& next);
};

// What happened in a span of time in a whole fleet. Gauges are the highest values seen in it.
struct TimelineSlot {
  TimeNs begin_ns = 0;
  int running = 0;
  int waiting = 0;
  std::int64_t kv_blocks_used = 0;
  std::int64_t kv_blocks = 0;  // number at the end
  std::int64_t prompt_tokens = 0;
  std::int64_t preemptions = 0;
  // By kPrecisions: layers at the end, as the mean of the replicas, and output tokens. A token
  // counts at each precision by the share of its replica's layers that have it.
  std::array<double, kPrecisions.size()> layers{};
  std::array<double, kPrecisions.size()> output_tokens{};
  DurationCounts ttft;
  DurationCounts token_time;
  std::vector<ReplicaSlot> replicas;  // empty for a fleet of one

  // Adds a slot that follows this one.
  void add(const TimelineSlot& next);
};

// Slots of equal length, the latest ones. Beyond `most` slots, either drops the oldest or joins
// them in pairs, so that memory is bounded and all time since the first slot stays.
class Timeline {
 public:
  enum class WhenFull { kDropOldest, kJoinPairs };
  Timeline(TimeNs slot_ns, std::size_t most, WhenFull when_full)
      : slot_ns_(slot_ns), most_(most), when_full_(when_full) {}

  // Adds what happened in a shorter slot. Slots come in order of time.
  void add(const TimelineSlot& slot);
  // Returns the slots, the one that may still grow included.
  const std::deque<TimelineSlot>& slots() const { return slots_; }
  TimeNs slot_ns() const { return slot_ns_; }

 private:
  TimeNs begin_of(TimeNs at_ns) const { return at_ns - at_ns % slot_ns_; }

  TimeNs slot_ns_;
  const std::size_t most_;
  const WhenFull when_full_;
  std::deque<TimelineSlot> slots_;
};

// Gathers what the engines of a fleet report into slots.
class TimelineGatherer {
 public:
  TimelineGatherer(TimeNs slot_ns, int replicas)
      : slot_ns_(slot_ns), replicas_(static_cast<std::size_t>(replicas)) {}

  // Each of these is called after finished(at_ns) has returned all slots that ended before.
  void engine(ReplicaId replica, const Observation& seen, TimeNs at_ns);
  void form(ReplicaId replica, const Form& form);
  void first_token(TimeNs waited_ns, TimeNs at_ns) { open(at_ns).ttft.add(waited_ns); }
  void next_token(TimeNs waited_ns, TimeNs at_ns) { open(at_ns).token_time.add(waited_ns); }
  // Says which replica serves for each one.
  void serving(const std::vector<ReplicaId>& by);

  // Returns the slot that has ended at `now_ns`, if there is one.
  std::optional<TimelineSlot> finished(TimeNs now_ns);
  // Returns when the open slot ends; nothing while none is open.
  std::optional<TimeNs> ends_ns() const;

 private:
  using ByPrecision = std::array<double, kPrecisions.size()>;
  struct Replica {
    Observation last;
    ByPrecision layers{};
    double all_layers = 0;
    bool serves = true;
  };

  TimelineSlot& open(TimeNs at_ns);
  void see(TimelineSlot& slot) const;
  ByPrecision mean_layers() const;

  const TimeNs slot_ns_;
  std::vector<Replica> replicas_;
  std::optional<TimelineSlot> slot_;
};

}  // namespace protean

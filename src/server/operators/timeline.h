#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

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

// What happened in a span of time. Gauges are the highest values seen in it.
struct TimelineSlot {
  TimeNs begin_ns = 0;
  int running = 0;
  int waiting = 0;
  std::int64_t kv_blocks_used = 0;
  std::int64_t kv_blocks = 0;  // at the end
  std::int64_t prompt_tokens = 0;
  std::int64_t preemptions = 0;
  // By kPrecisions: layers at the end, and output tokens. A token counts at each precision by the
  // share of the layers that have it.
  std::array<double, kPrecisions.size()> layers{};
  std::array<double, kPrecisions.size()> output_tokens{};
  DurationCounts ttft;
  DurationCounts token_time;

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

// Gathers what the engine reports into slots.
class TimelineGatherer {
 public:
  explicit TimelineGatherer(TimeNs slot_ns) : slot_ns_(slot_ns) {}

  // Each of these is called after finished(at_ns) has returned all slots that ended before.
  void engine(const Observation& seen, TimeNs at_ns);
  void form(const Form& form);
  void first_token(TimeNs waited_ns, TimeNs at_ns) { open(at_ns).ttft.add(waited_ns); }
  void next_token(TimeNs waited_ns, TimeNs at_ns) { open(at_ns).token_time.add(waited_ns); }

  // Returns the slot that has ended at `now_ns`, if there is one.
  std::optional<TimelineSlot> finished(TimeNs now_ns);
  // Returns when the open slot ends; nothing while none is open.
  std::optional<TimeNs> ends_ns() const;

 private:
  TimelineSlot& open(TimeNs at_ns);

  const TimeNs slot_ns_;
  std::optional<TimelineSlot> slot_;
  Observation last_;
  std::array<double, kPrecisions.size()> layers_{};
  double all_layers_ = 0;
};

}  // namespace protean

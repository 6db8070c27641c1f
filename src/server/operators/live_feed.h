#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/replica_id.h"
#include "contract/morph.h"
#include "contract/observation.h"
#include "http/growing_answer.h"
#include "server/operators/metrics.h"
#include "server/operators/timeline.h"

namespace protean {

// What operators watch: the server's state, its morphs, and the load over time. A watcher gets all
// of it once, as the server-sent event "hello", and then only what changes:
//   state    a JSON merge patch (RFC 7396) of the state
//   morphs   records of morph steps that are new or have changed
//   point    a slot of the timeline "minute", "hour" or "all"
//   range    all slots of a timeline whose slots became longer
// Keeps the changes of the last hour, at most 8 MiB of them, so that they can be saved as a
// recording. While nothing happens, nothing is sent. Belongs to the io thread.
class LiveFeed {
 public:
  // `unix_offset_ns` is Unix time less the clock of events.
  LiveFeed(std::int64_t unix_offset_ns, int replicas)
      : unix_offset_ns_(unix_offset_ns), gatherer_(kSlotNs, replicas) {}
  ~LiveFeed();

  // What happens, in order of time.
  void engine(ReplicaId replica, const Observation& seen, TimeNs at_ns);
  void first_token(TimeNs waited_ns, TimeNs at_ns);
  void next_token(TimeNs waited_ns, TimeNs at_ns);
  void finished(const EndedRequest& request);
  // Takes a replica's form and its latest morphs.
  void form(ReplicaId replica, const FormStatus& status, TimeNs at_ns);
  // Takes for each replica the one that serves for it.
  void serving(const std::vector<ReplicaId>& by) { gatherer_.serving(by); }
  // Takes the whole state as it is now. Watchers see fields that are null as absent.
  void state(boost::json::object now, TimeNs at_ns);
  // Time has passed: sends the slots that have ended.
  void pass(TimeNs now_ns);
  // Returns when pass() is due; nothing while no slot is open.
  std::optional<TimeNs> due_ns() const { return gatherer_.ends_ns(); }

  // Returns a stream for one watcher. With `last`, the stream ends after the first event.
  std::shared_ptr<GrowingAnswer> watch(TimeNs now_ns, bool last);
  // Ends all streams.
  void end();
  // Returns what happened since `since_ns` as lines of JSON: first the state at the beginning, then
  // {"t", "event", "data"} for each change and each request that ended.
  std::string recording(TimeNs since_ns, TimeNs now_ns) const;

 private:
  class Stream;
  struct Change {
    TimeNs at_ns = 0;
    std::string_view event;
    std::string json;
  };

  // A replica and the id of a morph step.
  using MorphKey = std::pair<std::int32_t, std::uint64_t>;

  double unix_s(TimeNs at_ns) const;
  std::string point_json(const TimelineSlot& slot) const;
  std::string points_json(const Timeline& timeline, std::size_t count) const;
  void close(const TimelineSlot& slot);
  void add_to(Timeline& timeline, std::string_view range, const TimelineSlot& slot);
  void send(std::string_view event, const std::string& json);
  void keep(TimeNs at_ns, std::string_view event, std::string json);
  boost::json::array morphs_json(ReplicaId replica, const MorphHistory& records) const;
  void forget_morphs();

  const std::int64_t unix_offset_ns_;
  TimelineGatherer gatherer_;
  Timeline minute_{kSlotNs, 120, Timeline::WhenFull::kDropOldest};
  Timeline hour_{10 * kNsPerS, 361, Timeline::WhenFull::kDropOldest};
  Timeline all_{kNsPerS, 360, Timeline::WhenFull::kJoinPairs};
  boost::json::object state_;
  std::map<MorphKey, std::shared_ptr<const MorphRecord>> history_;
  TimeNs morphs_since_ns_ = 0;  // steps that were asked for before it are forgotten
  std::deque<Change> changes_;
  std::size_t change_bytes_ = 0;
  boost::json::object state_before_;  // the state before the first of changes_
  std::vector<std::weak_ptr<Stream>> streams_;
  std::uint64_t streams_begun_ = 0;

  static constexpr TimeNs kSlotNs = kNsPerS / 2;
};

}  // namespace protean

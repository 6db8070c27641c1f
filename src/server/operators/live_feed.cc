#include "server/operators/live_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <iterator>
#include <utility>

#include "server/operators/form_json.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr TimeNs kKeptNs = 3600 * kNsPerS;
constexpr std::size_t kKeptBytes = std::size_t{8} << 20;
constexpr std::size_t kMostMorphs = 600;  // steps

// Removes fields that are null. In a merge patch null means that the field is removed. A patch
// replaces lists as a whole, so what they hold may be null.
void remove_null_fields(json::object& object) {
  for (auto field = object.begin(); field != object.end();) {
    if (json::object* inner = field->value().if_object()) {
      remove_null_fields(*inner);
    }
    field = field->value().is_null() ? object.stable_erase(field) : field + 1;
  }
}

// Returns the JSON merge patch (RFC 7396) that makes `to` of `from`. Neither has a field that is
// null.
json::object merge_patch(const json::object& from, const json::object& to) {
  json::object patch;
  for (const auto& [key, value] : to) {
    const json::value* old = from.if_contains(key);
    if (old != nullptr && *old == value) {
      continue;
    }
    if (old != nullptr && old->is_object() && value.is_object()) {
      patch.emplace(key, merge_patch(old->get_object(), value.get_object()));
    } else {
      patch.emplace(key, value);
    }
  }
  for (const auto& [key, value] : from) {
    if (!to.contains(key)) {
      patch.emplace(key, nullptr);
    }
  }
  return patch;
}

void apply_patch(json::object& to, const json::object& patch) {
  for (const auto& [key, value] : patch) {
    json::value* old = to.if_contains(key);
    if (value.is_null()) {
      to.erase(key);
    } else if (old != nullptr && old->is_object() && value.is_object()) {
      apply_patch(old->get_object(), value.get_object());
    } else {
      to[key] = value;
    }
  }
}

double in_seconds(TimeNs ns) {
  return static_cast<double>(ns) / static_cast<double>(kNsPerS);
}

// Appends `,"name":[median, P95, P99]`, if there is any duration.
void append_quantiles(std::string& json, std::string_view name, const DurationCounts& counts) {
  if (!counts.empty()) {
    fmt::format_to(std::back_inserter(json), R"(,"{}":[{:.6g},{:.6g},{:.6g}])", name,
                   in_seconds(counts.quantile(0.5)), in_seconds(counts.quantile(0.95)),
                   in_seconds(counts.quantile(0.99)));
  }
}

void append_by_precision(std::string& json, std::string_view name,
                         const std::array<double, kPrecisions.size()>& values) {
  std::string fields;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] > 0) {
      fields += fmt::format(R"({}"{}":{:.6g})", fields.empty() ? "" : ",",
                            to_string(kPrecisions[i]), values[i]);
    }
  }
  if (!fields.empty()) {
    fmt::format_to(std::back_inserter(json), R"(,"{}":{{{}}})", name, fields);
  }
}

}  // namespace

// One watcher's events that were not taken yet.
class LiveFeed::Stream final : public GrowingAnswer {
 public:
  Stream(std::string id, std::string first, bool last)
      : id_(std::move(id)), events_(std::move(first)), done_(last) {}

  void push(const std::string& event) {
    if (!done_) {
      events_ += event;
      tell();
    }
  }
  void end() {
    done_ = true;
    tell();
  }

  const std::string& id() const override { return id_; }
  bool streaming() const override { return true; }
  bool started() const override { return true; }
  bool done() const override { return done_; }
  const std::optional<ApiError>& failure() const override { return failure_; }
  ErrorStyle errors() const override { return ErrorStyle::kOpenAi; }
  std::size_t unsent_bytes() const override { return events_.size(); }
  std::string take_events() override { return std::exchange(events_, {}); }
  std::string take_body() override { return {}; }
  std::string keep_alive() const override { return ": ping\n\n"; }
  void abandon() override { done_ = true; }

 private:
  void tell() {
    if (on_change) {
      on_change();
    }
  }

  const std::string id_;
  std::string events_;
  bool done_;
  const std::optional<ApiError> failure_;
};

LiveFeed::~LiveFeed() = default;

double LiveFeed::unix_s(TimeNs at_ns) const {
  return in_seconds(at_ns + unix_offset_ns_);
}

void LiveFeed::engine(ReplicaId replica, const Observation& seen, TimeNs at_ns) {
  pass(at_ns);
  gatherer_.engine(replica, seen, at_ns);
}

void LiveFeed::first_token(TimeNs waited_ns, TimeNs at_ns) {
  pass(at_ns);
  gatherer_.first_token(waited_ns, at_ns);
}

void LiveFeed::next_token(TimeNs waited_ns, TimeNs at_ns) {
  pass(at_ns);
  gatherer_.next_token(waited_ns, at_ns);
}

void LiveFeed::finished(const EndedRequest& request) {
  const RequestTimes& times = request.times;
  std::string line = fmt::format(
      R"({{"arrived":{:.3f},"prompt_tokens":{},"cached_tokens":{},"output_tokens":{},"preemptions":{},"end":"{}","total_s":{:.4g})",
      unix_s(request.received_ns), request.usage.prompt_tokens, request.usage.cached_tokens,
      request.usage.output_tokens, request.usage.preemptions, request.reason,
      in_seconds(times.finished_ns - request.received_ns));
  if (times.first_token_ns > 0) {
    line +=
        fmt::format(R"(,"ttft_s":{:.4g})", in_seconds(times.first_token_ns - request.received_ns));
  }
  line += "}";
  keep(times.finished_ns, "request", std::move(line));
}

void LiveFeed::state(json::object now, TimeNs at_ns) {
  remove_null_fields(now);
  if (state_.empty()) {
    state_ = now;
    state_before_ = std::move(now);
  } else if (const json::object patch = merge_patch(state_, now); !patch.empty()) {
    state_ = std::move(now);
    std::string text = json::serialize(patch);
    send("state", text);
    keep(at_ns, "state", std::move(text));
  }
}

// Histories share their records, so a record that is another object has changed.
void LiveFeed::form(ReplicaId replica, const FormStatus& status, TimeNs at_ns) {
  gatherer_.form(replica, status.form);
  MorphHistory changed;
  for (const std::shared_ptr<const MorphRecord>& record : *status.history) {
    if (record->asked_ns < morphs_since_ns_) {
      continue;
    }
    std::shared_ptr<const MorphRecord>& known = history_[{replica.value, record->id}];
    if (known != record) {
      known = record;
      changed.push_back(record);
    }
  }
  if (changed.empty()) {
    return;
  }
  forget_morphs();
  std::string text = json::serialize(morphs_json(replica, changed));
  send("morphs", text);
  keep(at_ns, "morphs", std::move(text));
}

// Keeps the latest morph steps of all replicas. A group's engine begins a history of its own, and
// the replica's own goes on when the group has parted, so ids do not tell which steps are old.
void LiveFeed::forget_morphs() {
  while (history_.size() > kMostMorphs) {
    const auto oldest = std::min_element(
        history_.begin(), history_.end(),
        [](const auto& a, const auto& b) { return a.second->asked_ns < b.second->asked_ns; });
    morphs_since_ns_ = oldest->second->asked_ns + 1;
    history_.erase(oldest);
  }
}

json::array LiveFeed::morphs_json(ReplicaId replica, const MorphHistory& records) const {
  json::array shown = shown_history(records, 0, in_seconds(unix_offset_ns_));
  for (json::value& one : shown) {
    one.get_object()["replica"] = replica.value;
  }
  return shown;
}

void LiveFeed::pass(TimeNs now_ns) {
  if (const auto slot = gatherer_.finished(now_ns)) {
    close(*slot);
  }
}

void LiveFeed::close(const TimelineSlot& slot) {
  minute_.add(slot);
  std::string point = point_json(slot);
  send("point", fmt::format(R"({{"range":"minute","point":{}}})", point));
  keep(slot.begin_ns, "point", std::move(point));
  add_to(hour_, "hour", slot);
  add_to(all_, "all", slot);
}

// Sends the timeline's last slot once a new one begins.
void LiveFeed::add_to(Timeline& timeline, std::string_view range, const TimelineSlot& slot) {
  const TimeNs slot_ns = timeline.slot_ns();
  const TimeNs begun_ns = timeline.slots().empty() ? -1 : timeline.slots().back().begin_ns;
  timeline.add(slot);
  const std::size_t count = timeline.slots().size();
  if (timeline.slot_ns() != slot_ns) {
    send("range", fmt::format(R"({{"range":"{}","step_s":{},"points":{}}})", range,
                              in_seconds(timeline.slot_ns()), points_json(timeline, count - 1)));
  } else if (count > 1 && timeline.slots().back().begin_ns != begun_ns) {
    send("point", fmt::format(R"({{"range":"{}","point":{}}})", range,
                              point_json(timeline.slots()[count - 2])));
  }
}

std::string LiveFeed::point_json(const TimelineSlot& slot) const {
  std::string point = fmt::format(
      R"({{"t":{:.3f},"running":{},"waiting":{},"kv_used":{},"kv_blocks":{},"prompt_tokens":{},"preemptions":{})",
      unix_s(slot.begin_ns), slot.running, slot.waiting, slot.kv_blocks_used, slot.kv_blocks,
      slot.prompt_tokens, slot.preemptions);
  append_quantiles(point, "ttft_s", slot.ttft);
  append_quantiles(point, "token_s", slot.token_time);
  append_by_precision(point, "layers", slot.layers);
  append_by_precision(point, "tokens", slot.output_tokens);
  if (!slot.replicas.empty()) {
    point += R"(,"replicas":[)";
    for (const ReplicaSlot& one : slot.replicas) {
      point += point.back() == '[' ? "" : ",";
      point += one.serves ? fmt::format("[{},{},{},{},{}]", one.running, one.waiting,
                                        one.kv_blocks_used, one.kv_blocks, one.output_tokens)
                          : "null";
    }
    point += "]";
  }
  return point + "}";
}

std::string LiveFeed::points_json(const Timeline& timeline, std::size_t count) const {
  std::string points = "[";
  for (std::size_t i = 0; i < std::min(count, timeline.slots().size()); ++i) {
    points += (i > 0 ? "," : "") + point_json(timeline.slots()[i]);
  }
  return points + "]";
}

void LiveFeed::send(std::string_view event, const std::string& json) {
  std::erase_if(streams_, [](const auto& stream) { return stream.expired(); });
  if (streams_.empty()) {
    return;
  }
  const std::string text = fmt::format("event: {}\ndata: {}\n\n", event, json);
  for (const std::weak_ptr<Stream>& weak : streams_) {
    if (const auto stream = weak.lock()) {
      stream->push(text);
    }
  }
}

void LiveFeed::keep(TimeNs at_ns, std::string_view event, std::string json) {
  change_bytes_ += json.size() + sizeof(Change);
  changes_.push_back({at_ns, event, std::move(json)});
  while (!changes_.empty() &&
         (change_bytes_ > kKeptBytes || changes_.front().at_ns < at_ns - kKeptNs)) {
    const Change& oldest = changes_.front();
    if (oldest.event == "state") {
      apply_patch(state_before_, json::parse(oldest.json).get_object());
    }
    change_bytes_ -= oldest.json.size() + sizeof(Change);
    changes_.pop_front();
  }
}

std::shared_ptr<GrowingAnswer> LiveFeed::watch(TimeNs now_ns, bool last) {
  pass(now_ns);
  const auto closed = [](const Timeline& timeline) {
    return std::max<std::size_t>(timeline.slots().size(), 1) - 1;
  };
  json::array morphs;
  for (const auto& [key, record] : history_) {
    for (json::value& one : morphs_json(ReplicaId{key.first}, {record})) {
      morphs.push_back(std::move(one));
    }
  }
  const std::string hello = fmt::format(
      "event: hello\ndata: {{\"now\":{:.3f},\"state\":{},\"morphs\":{},\"ranges\":{{"
      "\"minute\":{{\"step_s\":{},\"points\":{}}},\"hour\":{{\"step_s\":{},\"points\":{}}},"
      "\"all\":{{\"step_s\":{},\"points\":{}}}}}}}\n\n",
      unix_s(now_ns), json::serialize(state_), json::serialize(morphs),
      in_seconds(minute_.slot_ns()), points_json(minute_, minute_.slots().size()),
      in_seconds(hour_.slot_ns()), points_json(hour_, closed(hour_)), in_seconds(all_.slot_ns()),
      points_json(all_, closed(all_)));
  auto stream = std::make_shared<Stream>(fmt::format("live-{}", ++streams_begun_), hello, last);
  streams_.push_back(stream);
  return stream;
}

void LiveFeed::end() {
  for (const std::weak_ptr<Stream>& weak : std::exchange(streams_, {})) {
    if (const auto stream = weak.lock()) {
      stream->end();
    }
  }
}

std::string LiveFeed::recording(TimeNs since_ns, TimeNs now_ns) const {
  json::object state = state_before_;
  auto first = changes_.begin();
  for (; first != changes_.end() && first->at_ns < since_ns; ++first) {
    if (first->event == "state") {
      apply_patch(state, json::parse(first->json).get_object());
    }
  }
  const TimeNs from_ns = first == changes_.end() ? now_ns : std::max(first->at_ns, since_ns);
  std::string lines =
      fmt::format("{{\"protean_recording\":1,\"from\":{:.3f},\"to\":{:.3f},\"state\":{}}}\n",
                  unix_s(from_ns), unix_s(now_ns), json::serialize(state));
  for (; first != changes_.end(); ++first) {
    lines += fmt::format("{{\"t\":{:.3f},\"event\":\"{}\",\"data\":{}}}\n", unix_s(first->at_ns),
                         first->event, first->json);
  }
  return lines;
}

}  // namespace protean

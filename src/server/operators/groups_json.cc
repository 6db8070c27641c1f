#include "server/operators/groups_json.h"

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "server/call/json_body.h"
#include "server/operators/form_json.h"

namespace protean {
namespace {

namespace json = boost::json;

json::array shown_replicas(const std::vector<ReplicaId>& replicas) {
  json::array shown;
  for (const ReplicaId replica : replicas) {
    shown.push_back(json::value(std::to_string(replica.value)));
  }
  return shown;
}

// Shows the shards of each component that each device of a group holds. A form numbers the devices
// of its group from 0; those of all replicas are numbered one replica after the other.
json::array shown_holdings(const Form& form, std::span<const ReplicaId> replicas) {
  json::array devices;
  const std::size_t each = form.group.size() / replicas.size();
  const auto shown = [](const ShardRun& run) { return json::array{run.first, run.count}; };
  for (std::size_t i = 0; i < form.group.size(); ++i) {
    const Holding& holding = form.group[i];
    const auto replica = static_cast<std::size_t>(replicas[i / each].value);
    json::array attention;
    json::array mlp;
    for (const Holding::Layer& layer : holding.layers) {
      attention.push_back(shown(layer.attention));
      mlp.push_back(shown(layer.mlp));
    }
    devices.push_back(json::object{{"device", replica * each + i % each},
                                   {"embeddings", shown(holding.embeddings)},
                                   {"attention", std::move(attention)},
                                   {"mlp", std::move(mlp)}});
  }
  return devices;
}

json::object shown_record(const RegroupRecord& record, TimeNs unix_offset_ns) {
  const auto seconds_after = [&](TimeNs at_ns) {
    return at_ns < 0 ? json::value(nullptr)
                     : json::value(static_cast<double>(at_ns - record.asked_ns) / kNsPerS);
  };
  return {{"replicas", shown_replicas(record.replicas)},
          {"by", to_string(record.by)},
          {"to", record.together ? "group" : "replicas"},
          {"reason", record.reason},
          {"asked_at", static_cast<double>(record.asked_ns + unix_offset_ns) / kNsPerS},
          {"joint_steps_after_s", seconds_after(record.begun_ns)},
          {"settled_after_s", seconds_after(record.settled_ns)},
          {"done_after_s", seconds_after(record.done_ns)},
          {"kv_grown_after_s", seconds_after(record.grown_ns)},
          {"steps", record.steps},
          {"steps_meanwhile", record.steps_meanwhile},
          {"blocks_moved", record.blocks_moved},
          {"kv_bytes", record.kv_bytes},
          {"weight_bytes", record.weight_bytes},
          {"preempted", record.preempted},
          {"recomputed", record.recomputed},
          {"failure", record.failure.empty() ? json::value(nullptr)
                                             : json::value(json::string(record.failure))}};
}

json::object shown_running(const RunningRegroup& change, TimeNs unix_offset_ns) {
  json::object shown = shown_record(change.record, unix_offset_ns);
  shown["stage"] = change.stage;
  shown["waits_for"] =
      change.waits_for.empty() ? json::value(nullptr) : json::value(json::string(change.waits_for));
  return shown;
}

json::object without_nulls(const json::object& all) {
  json::object some;
  for (const auto& [name, value] : all) {
    if (!value.is_null()) {
      some.emplace(name, value);
    }
  }
  return some;
}

ApiError bad_wish(std::string message) {
  return {.message = std::move(message), .param = "groups"};
}

// Reads 3 or "3"; nothing if the value is no such number.
std::optional<ReplicaId> read_replica(const json::value& value) {
  if (value.is_int64() && value.get_int64() >= 0 && value.get_int64() < (1 << 20)) {
    return ReplicaId{static_cast<std::int32_t>(value.get_int64())};
  }
  if (!value.is_string()) {
    return std::nullopt;
  }
  const std::string_view text = value.get_string();
  std::int32_t number = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = failed == std::errc() && end == text.data() + text.size() && number >= 0;
  return whole ? std::optional(ReplicaId{number}) : std::nullopt;
}

}  // namespace

json::value shown_bubbles(const DeviceUse& use) {
  return use.span_ns > 0 ? json::value(use.bubble_share()) : json::value(nullptr);
}

json::object shown_groups(const GroupsStatus& status, TimeNs unix_offset_ns) {
  json::array groups;
  for (const GroupStatus& group : status.groups) {
    json::object& shown = groups.emplace_back(json::object()).get_object();
    shown["replicas"] = shown_replicas(group.replicas);
    shown["by"] = group.by ? json::value(to_string(*group.by)) : json::value(nullptr);
    shown["bubble_share"] = shown_bubbles(group.use);
    if (group.form) {
      shown["form"] = to_string(*group.form);
      shown["stages"] = shown_form(*group.form).at("stages");
      shown["devices"] = shown_holdings(*group.form, group.replicas);
    }
  }
  json::array history;
  for (const RegroupRecord& record : status.history) {
    history.push_back(shown_record(record, unix_offset_ns));
  }
  json::array running;
  for (const RunningRegroup& change : status.running) {
    running.push_back(shown_running(change, unix_offset_ns));
  }
  json::array failed;
  for (const ReplicaFailure& failure : status.failed) {
    failed.push_back(
        json::object{{"replica", std::to_string(failure.replica.value)},
                     {"at", static_cast<double>(failure.at_ns + unix_offset_ns) / kNsPerS},
                     {"reason", failure.why},
                     {"devices", json::array(failure.devices.begin(), failure.devices.end())}});
  }
  return {{"groups", std::move(groups)},
          {"out_of_service", std::move(failed)},
          {"regrouping", std::move(running)},
          {"history", std::move(history)}};
}

json::object shown_grouping(const GroupsStatus& status, TimeNs unix_offset_ns) {
  json::array groups;
  for (const GroupStatus& group : status.groups) {
    json::object shown{{"replicas", shown_replicas(group.replicas)}};
    if (group.by) {
      shown["by"] = to_string(*group.by);
    }
    groups.push_back(std::move(shown));
  }
  json::object ended;
  for (const RegroupRecord& record : status.history) {
    // Changes of different replicas may begin at the same moment.
    const int first = record.replicas.front().value;
    ended[std::to_string(record.asked_ns) + "-" + std::to_string(first)] =
        without_nulls(shown_record(record, unix_offset_ns));
  }
  json::object shown{{"groups", std::move(groups)}, {"regroupings", std::move(ended)}};
  json::array running;
  for (const RunningRegroup& change : status.running) {
    running.push_back(without_nulls(shown_running(change, unix_offset_ns)));
  }
  shown["regrouping"] = std::move(running);
  return shown;
}

json::object shown_changes(const std::vector<Regroup>& changes) {
  json::array shown;
  for (const Regroup& change : changes) {
    json::object one = shown_morph(change.morph);
    one["replicas"] = shown_replicas(change.replicas);
    one["by"] = to_string(change.by);
    one["to"] = change.together ? "group" : "replicas";
    shown.push_back(std::move(one));
  }
  return {{"changes", std::move(shown)}};
}

Checked<GroupWish> read_group_wish(std::string_view body) {
  Checked<json::value> parsed = parse_json_body(body);
  if (ApiError* error = std::get_if<ApiError>(&parsed)) {
    return std::move(*error);
  }
  const json::value& value = std::get<json::value>(parsed);
  const json::object empty;
  const json::object& fields = value.is_object() ? value.get_object() : empty;
  const json::value* groups = fields.if_contains("groups");
  if (groups == nullptr || !groups->is_array()) {
    return bad_wish(R"(send {"groups": [["0", "1"]], "by": "shards"}, or "layers")");
  }
  GroupWish wish;
  for (const auto& [name, field] : fields) {
    if (name == "by" && field.is_string() && field.get_string() == "layers") {
      wish.by = GroupBy::kLayers;
    } else if (name != "groups" &&
               !(name == "by" && field.is_string() && field.get_string() == "shards")) {
      return bad_wish(name == "by" ? R"(by is "shards" or "layers")"
                                   : R"(only "groups" and "by" are known here)");
    }
  }
  for (const json::value& group : groups->get_array()) {
    if (!group.is_array()) {
      return bad_wish(R"(each group is a list of replicas, like ["0", "1"])");
    }
    auto& replicas = wish.groups.emplace_back();
    for (const json::value& named : group.get_array()) {
      const std::optional<ReplicaId> replica = read_replica(named);
      if (!replica) {
        return bad_wish(R"(a replica is a number from 0, like "1")");
      }
      replicas.push_back(*replica);
    }
  }
  return wish;
}

}  // namespace protean

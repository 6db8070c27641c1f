#include "apps/simulation_report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <string>
#include <utility>

namespace protean {
namespace {

namespace json = boost::json;

loadtest::RequestRecord planned_record(std::uint64_t request, const TraceRequest& traced) {
  return {.index = static_cast<std::int64_t>(request) - 1,
          .planned_input_tokens = traced.input_tokens,
          .planned_output_tokens = traced.output_tokens,
          .input_tokens = traced.input_tokens};
}

loadtest::RequestRecord record_of(const FinishedRequest& done, const TraceRequest& traced) {
  loadtest::RequestRecord record = planned_record(done.request, traced);
  const bool completed = done.reason == FinishReason::kStop || done.reason == FinishReason::kLength;
  record.due_ns = record.sent_ns = record.connected_ns = done.times.arrived_ns;
  record.first_token_ns = done.times.first_token_ns;
  record.last_token_ns = done.tokens_ns.empty() ? -1 : done.tokens_ns.back();
  record.end_ns = done.times.finished_ns;
  record.input_tokens = done.usage.prompt_tokens;
  record.output_tokens = done.usage.output_tokens;
  record.cached_tokens = done.usage.cached_tokens;
  record.chunks = done.usage.output_tokens;
  record.has_usage = true;
  record.outcome = completed ? loadtest::Outcome::kCompleted : loadtest::Outcome::kErrorEvent;
  record.http_status = 200;
  record.finish_reason = completed ? "length" : "error";
  for (std::size_t i = 1; i < done.tokens_ns.size(); ++i) {
    record.itl_ms.push_back(
        static_cast<float>(static_cast<double>(done.tokens_ns[i] - done.tokens_ns[i - 1]) /
                           static_cast<double>(kNsPerMs)));
  }
  return record;
}

json::object change_object(const RegroupRecord& change) {
  json::array replicas;
  for (const ReplicaId replica : change.replicas) {
    replicas.emplace_back(replica.value);
  }
  return {{"replicas", std::move(replicas)},
          {"by", std::string(to_string(change.by))},
          {"together", change.together},
          {"reason", change.reason},
          {"asked_s", loadtest::seconds(change.asked_ns)},
          {"begun_s", loadtest::seconds(change.begun_ns)},
          {"settled_s", loadtest::seconds(change.settled_ns)},
          {"done_s", loadtest::seconds(change.done_ns)},
          {"kv_grown_s", loadtest::seconds(change.grown_ns)},
          {"steps", change.steps},
          {"steps_meanwhile", change.steps_meanwhile},
          {"blocks_moved", change.blocks_moved},
          {"kv_bytes", change.kv_bytes},
          {"weight_bytes", change.weight_bytes},
          {"preempted", change.preempted},
          {"recomputed", change.recomputed},
          {"failure", change.failure}};
}

}  // namespace

loadtest::RunResult run_of(const SimulationReport& report,
                           const std::vector<TraceRequest>& requests) {
  loadtest::RunResult run;
  const auto traced = [&](std::uint64_t request) -> const TraceRequest& {
    return requests.at(static_cast<std::size_t>(request) - 1);
  };
  for (const FinishedRequest& done : report.finished) {
    run.records.push_back(record_of(done, traced(done.request)));
  }
  for (const RefusedRequest& refused : report.refusals) {
    loadtest::RequestRecord record = planned_record(refused.request, traced(refused.request));
    record.due_ns = record.sent_ns = record.connected_ns = record.end_ns = refused.at_ns;
    record.outcome = loadtest::Outcome::kHttpStatus;
    record.http_status = 429;
    record.error = "the server has too many requests, or would be too late";
    run.records.push_back(std::move(record));
  }
  std::sort(run.records.begin(), run.records.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
  for (const loadtest::RequestRecord& record : run.records) {
    run.elapsed_ns = std::max(run.elapsed_ns, record.end_ns);
  }
  return run;
}

json::object form_object(const SimulationReport& report, TimeNs elapsed_ns) {
  if (report.forms.empty()) {
    return {};
  }
  const FormStatus& last = *report.forms.back().status;
  const std::int64_t swaps = last.swaps_down_total + last.swaps_up_total;
  const double minutes = loadtest::seconds(elapsed_ns) / 60;
  json::object tokens;
  for (const TokensAt& at : last.output_tokens) {
    tokens[at.precision] = at.tokens;
  }
  return {{"at_end", to_string(last.form)},
          {"swaps_down", last.swaps_down_total},
          {"swaps_up", last.swaps_up_total},
          {"swaps_per_minute", minutes > 0 ? static_cast<double>(swaps) / minutes : 0.0},
          {"failures", last.failures_total},
          {"output_tokens", std::move(tokens)}};
}

json::object groups_object(const SimulationReport& report) {
  const bool wants_more = report.replicas_wanted.size() > 1;
  if (report.groups == nullptr && report.pipelines.span_ns == 0 && !wants_more) {
    return {};
  }
  json::object groups{{"bubbles", report.pipelines.bubble_share()},
                      {"pipeline_device_s", loadtest::seconds(report.pipelines.span_ns)},
                      {"kv_bytes_exchanged", report.kv_bytes_exchanged}};
  json::array changes;
  for (const RegroupRecord& change : report.changes) {
    changes.push_back(change_object(change));
  }
  groups["changes"] = std::move(changes);
  json::array wanted;
  for (const ReplicasWantedAt& at : report.replicas_wanted) {
    wanted.push_back(json::object{{"at_s", loadtest::seconds(at.at_ns)}, {"replicas", at.wanted}});
  }
  groups["replicas_wanted"] = std::move(wanted);
  if (report.groups != nullptr) {
    groups["together"] = report.groups->together_total;
    groups["apart"] = report.groups->apart_total;
    groups["failures"] = report.groups->failures_total;
  }
  return groups;
}

}  // namespace protean

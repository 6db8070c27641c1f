#include "server/operators/group_metrics.h"

#include <algorithm>

namespace protean {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Labels;

}  // namespace

GroupMetrics::GroupMetrics(prometheus::Registry& registry, const std::string& model_name)
    : groups_(BuildGauge()
                  .Name("protean:groups")
                  .Help("Replicas and groups of replicas that serve with an engine of their own.")
                  .Register(registry)
                  .Add({{"model_name", model_name}})),
      running_(BuildGauge()
                   .Name("protean:regrouping")
                   .Help("Changes of groups that go on, to one group or to several replicas.")
                   .Register(registry)
                   .Add({{"model_name", model_name}})),
      failures_(BuildCounter()
                    .Name("protean:regrouping_failures_total")
                    .Help("Changes of groups that turned back or were given up.")
                    .Register(registry)
                    .Add({{"model_name", model_name}})),
      kv_bytes_(bytes(registry, model_name, "kv")),
      weight_bytes_(bytes(registry, model_name, "weights")),
      out_of_service_(BuildGauge()
                          .Name("protean:replicas_out_of_service")
                          .Help("Replicas whose devices have failed.")
                          .Register(registry)
                          .Add({{"model_name", model_name}})),
      wanted_(BuildGauge()
                  .Name("protean:replicas_wanted")
                  .Help("Replicas that the load asks for: more than this server has if KV stays "
                        "short although its policies had time to free some.")
                  .Register(registry)
                  .Add({{"model_name", model_name}})),
      priority_(BuildGauge()
                    .Name("protean:model_priority")
                    .Help("Priority of the model on CPUs that it shares with others.")
                    .Register(registry)
                    .Add({{"model_name", model_name}})),
      step_seconds_(
          BuildCounter()
              .Name("protean:step_seconds_total")
              .Help("Time for which the model's devices computed steps, summed over devices.")
              .Register(registry)
              .Add({{"model_name", model_name}})),
      together_(changes(registry, model_name, "group")),
      apart_(changes(registry, model_name, "replicas")) {
  priority_.Set(1);
}

prometheus::Counter& GroupMetrics::bytes(prometheus::Registry& registry,
                                         const std::string& model_name, const char* of) {
  return BuildCounter()
      .Name("protean:regrouping_bytes_total")
      .Help("Bytes that changes of groups moved between devices or fetched, by what they are.")
      .Register(registry)
      .Add({{"model_name", model_name}, {"of", of}});
}

GroupMetrics::Changes GroupMetrics::changes(prometheus::Registry& registry,
                                            const std::string& model_name, const char* to) {
  const Labels labels{{"model_name", model_name}, {"to", to}};
  return {MirroredCounter(BuildCounter()
                              .Name("protean:regroupings_total")
                              .Help("Changes of groups that have ended, by what they led to.")
                              .Register(registry)
                              .Add(labels)),
          BuildHistogram()
              .Name("protean:regrouping_seconds")
              .Help("Time that changes of groups took, from the wish to the end.")
              .Register(registry)
              .Add(labels,
                   prometheus::Histogram::BucketBoundaries{.01, .03, .1, .3, 1, 3, 10, 30, 100})};
}

void GroupMetrics::show(const GroupsStatus& status) {
  groups_.Set(static_cast<double>(status.groups.size()));
  running_.Set(static_cast<double>(status.running.size()));
  failures_.set(status.failures_total);
  kv_bytes_.set(status.kv_bytes_total);
  weight_bytes_.set(status.weight_bytes_total);
  out_of_service_.Set(static_cast<double>(status.failed.size()));
  show(together_, status.together_total, status.history, true);
  show(apart_, status.apart_total, status.history, false);
}

void GroupMetrics::show(const ReplicasWanted& wanted) {
  wanted_.Set(wanted.wanted);
}

void GroupMetrics::show(const TimeShare& share) {
  priority_.Set(share.priority());
  step_seconds_.Increment(std::max(0.0, share.step_seconds() - step_seconds_.Value()));
}

// Shows what has ended since the last call, which may be several changes.
void GroupMetrics::show(Changes& changes, std::int64_t total,
                        const std::vector<RegroupRecord>& history, bool together) {
  std::int64_t fresh = changes.total.set(total);
  for (auto record = history.rbegin(); record != history.rend() && fresh > 0; ++record) {
    if (record->together == together && record->succeeded()) {
      changes.seconds.Observe(static_cast<double>(record->done_ns - record->asked_ns) / kNsPerS);
      --fresh;
    }
  }
}

}  // namespace protean

#include "server/operators/group_metrics.h"

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
                   .Help("1 while replicas become one group or a group splits.")
                   .Register(registry)
                   .Add({{"model_name", model_name}})),
      failures_(BuildCounter()
                    .Name("protean:regrouping_failures_total")
                    .Help("Changes of groups that turned back or were given up.")
                    .Register(registry)
                    .Add({{"model_name", model_name}})),
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
      together_(changes(registry, model_name, "group")),
      apart_(changes(registry, model_name, "replicas")) {}

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
  running_.Set(status.running ? 1 : 0);
  failures_.set(status.failures_total);
  out_of_service_.Set(static_cast<double>(status.failed.size()));
  const RegroupRecord* latest = status.history.empty() ? nullptr : &status.history.back();
  show(together_, status.together_total, latest != nullptr && latest->together ? latest : nullptr);
  show(apart_, status.apart_total, latest != nullptr && !latest->together ? latest : nullptr);
}

void GroupMetrics::show(const ReplicasWanted& wanted) {
  wanted_.Set(wanted.wanted);
}

void GroupMetrics::show(Changes& changes, std::int64_t total, const RegroupRecord* latest) {
  if (total > changes.total.last() && latest != nullptr) {
    changes.seconds.Observe(static_cast<double>(latest->done_ns - latest->asked_ns) / kNsPerS);
  }
  changes.total.set(total);
}

}  // namespace protean

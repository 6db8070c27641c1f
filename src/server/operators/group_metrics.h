#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>

#include "contract/groups.h"

namespace protean {

// The metrics of a fleet's groups. The registry must outlive it.
class GroupMetrics {
 public:
  GroupMetrics(prometheus::Registry& registry, const std::string& model_name);
  void show(const GroupsStatus& status);

 private:
  // Changes to one group, or to replicas.
  struct Changes {
    prometheus::Counter& total;
    prometheus::Histogram& seconds;
    std::int64_t shown = 0;
  };
  static Changes changes(prometheus::Registry& registry, const std::string& model_name,
                         const char* to);
  static void show(Changes& changes, std::int64_t total, const RegroupRecord* latest);

  prometheus::Gauge& groups_;
  prometheus::Gauge& running_;
  prometheus::Counter& failures_;
  std::int64_t failures_shown_ = 0;
  prometheus::Gauge& out_of_service_;
  Changes together_;
  Changes apart_;
};

}  // namespace protean

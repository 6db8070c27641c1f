#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>
#include <vector>

#include "contract/groups.h"
#include "contract/replicas_wanted.h"
#include "ports/step_turn.h"
#include "server/operators/mirrored_counter.h"

namespace protean {

// The metrics of a model that belong to no replica: of its fleet's groups, and of its share of the
// devices. The registry must outlive it.
class GroupMetrics {
 public:
  GroupMetrics(prometheus::Registry& registry, const std::string& model_name);
  void show(const GroupsStatus& status);
  void show(const ReplicasWanted& wanted);
  void show(const TimeShare& share);

 private:
  // Changes to one group, or to replicas.
  struct Changes {
    MirroredCounter total;
    prometheus::Histogram& seconds;
  };
  static prometheus::Counter& bytes(prometheus::Registry& registry, const std::string& model_name,
                                    const char* of);
  static Changes changes(prometheus::Registry& registry, const std::string& model_name,
                         const char* to);
  static void show(Changes& changes, std::int64_t total, const std::vector<RegroupRecord>& history,
                   bool together);

  prometheus::Gauge& groups_;
  prometheus::Gauge& running_;
  MirroredCounter failures_;
  MirroredCounter kv_bytes_;
  MirroredCounter weight_bytes_;
  prometheus::Gauge& out_of_service_;
  prometheus::Gauge& wanted_;
  prometheus::Gauge& priority_;
  prometheus::Counter& step_seconds_;
  Changes together_;
  Changes apart_;
};

}  // namespace protean

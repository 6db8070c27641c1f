#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "contract/groups.h"
#include "contract/morph.h"
#include "contract/observation.h"
#include "contract/replicas_wanted.h"
#include "contract/request.h"
#include "ports/step_turn.h"
#include "server/residence.h"

namespace protean {

// Labels that do not change while the server runs.
struct MetricsLabels {
  std::string model_name;
  std::string version;
};

// What histograms count of a request that has ended.
struct EndedRequest {
  std::string_view reason;  // stop, length, abort or error
  RequestUsage usage;
  RequestTimes times;
  TimeNs received_ns = 0;  // when the server received it, before tokenisation
  int max_tokens = 0;
};

// The metrics under /metrics, with the names that dashboards, autoscalers and gateways for vLLM
// query, of one model. The label `engine` is the replica's number.
class Metrics {
 public:
  Metrics(const MetricsLabels& labels, int replicas);
  ~Metrics();

  void engine(ReplicaId replica, const Observation& seen);
  void form(ReplicaId replica, const FormStatus& status);
  void has_no_form(ReplicaId replica);  // until it has one: another replica serves for it
  void groups(const GroupsStatus& status);
  void replicas_wanted(const ReplicasWanted& wanted);
  void residence(Residence residence);
  void time_share(const TimeShare& share);
  void moves(int total);  // to other devices or configurations, without an operator
  void first_token(ReplicaId replica, TimeNs waited_ns);
  void next_token(ReplicaId replica, TimeNs waited_ns);
  void finished(ReplicaId replica, const EndedRequest& record);

 private:
  friend std::string exposition(const std::vector<const Metrics*>& models);
  struct Series;
  std::unique_ptr<Series> series_;
};

// Returns the metrics of a server's models and of its process in Prometheus' text format 0.0.4.
// Models share families, whose samples their label model_name tells apart.
std::string exposition(const std::vector<const Metrics*>& models);

}  // namespace protean

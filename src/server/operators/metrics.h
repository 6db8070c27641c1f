#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/replica_id.h"
#include "contract/groups.h"
#include "contract/morph.h"
#include "contract/observation.h"
#include "contract/request.h"

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
// query. The label `engine` is the replica's number. text() may be called from any thread,
// everything else from one.
class Metrics {
 public:
  Metrics(const MetricsLabels& labels, int replicas);
  ~Metrics();

  void engine(ReplicaId replica, const Observation& seen);
  void form(ReplicaId replica, const FormStatus& status);
  void groups(const GroupsStatus& status);
  void first_token(ReplicaId replica, TimeNs waited_ns);
  void next_token(ReplicaId replica, TimeNs waited_ns);
  void finished(ReplicaId replica, const EndedRequest& record);
  void http(std::string_view method, std::string_view handler, int status);

  std::string text() const;  // Prometheus text format 0.0.4

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace protean

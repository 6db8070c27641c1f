#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "contract/replicas_wanted.h"
#include "server/answer/answer_record.h"
#include "server/operators/scaler_hook.h"
#include "server/operators/tracer.h"

namespace protean {

// What a server tells other servers on its own: traces to a collector, and numbers of replicas to a
// scaler. Nothing waits for them.
class Reports {
 public:
  struct Setting {
    std::string otlp_endpoint;  // empty: traces are not sent
    std::string scaler_url;     // empty: no scaler is told
    std::string version;
    std::int64_t unix_offset_ns = 0;  // Unix time less the engine's clock
    std::function<std::uint64_t()> random;
  };

  // Fails if an address is no usable one. Called once, before the rest.
  Status start(const Setting& setting);

  void answered(const AnswerRecord& record);
  void replicas_wanted(const std::string& model, const ReplicasWanted& wanted,
                       std::int64_t unix_time_s);

 private:
  std::unique_ptr<Tracer> tracer_;
  std::unique_ptr<ScalerHook> scaler_;
};

}  // namespace protean

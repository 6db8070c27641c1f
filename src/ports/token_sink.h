#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "contract/observation.h"
#include "contract/request.h"

namespace protean {

// Every Arrival is answered by Accepted or Refused at once; every Accepted ends in one Finished.
struct Accepted {
  RequestId request;
};
struct Refused {
  RequestId request;
  Error error;
};
struct NewToken {
  RequestId request;
  TokenId token = 0;
};
struct Finished {
  RequestId request;
  FinishReason reason = FinishReason::kStop;
  TokenId stop_id = -1;  // the token that ended it, where one did
  std::string failure;   // why, for kFailed
  RequestUsage usage;
  RequestTimes times;
};
using Output = std::variant<Accepted, Refused, NewToken, Finished>;

// What one event led to, in order.
struct OutputBatch {
  TimeNs at_ns = 0;
  std::vector<Output> outputs;
  Observation observation;
};

// Where an engine's outputs go. Called on the engine's thread; must not block.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void emit(OutputBatch batch) = 0;
};

}  // namespace protean

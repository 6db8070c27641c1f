#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"
#include "contract/morph.h"
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
// Likelihoods of prompt tokens, in order of position, before the first NewToken. Several make up
// the whole of a long prompt.
struct PromptScored {
  RequestId request;
  int first_position = 1;  // of the token that logprobs[0] is about
  std::vector<TokenLogprobs> logprobs;
};
struct NewToken {
  RequestId request;
  TokenId token = 0;
  std::optional<TokenLogprobs> logprobs;  // where the request wants them
};
struct Finished {
  RequestId request;
  FinishReason reason = FinishReason::kStop;
  TokenId stop_id = -1;  // the token that ended it, where one did
  std::string failure;   // why, for kFailed
  RequestUsage usage;
  RequestTimes times;
  std::vector<float> embedding;  // [hidden], where the request asked for pooling
};
// What is going to be done for a WantForm, or why nothing is.
struct WishAnswered {
  std::uint64_t wish_id = 0;
  Result<Morph> morph;
};
using Output = std::variant<Accepted, Refused, PromptScored, NewToken, Finished, WishAnswered>;

// What one event led to, in order.
struct OutputBatch {
  TimeNs at_ns = 0;
  std::vector<Output> outputs;
  Observation observation;
  std::shared_ptr<const FormStatus> form;  // where it has changed
};

// Where an engine's outputs go. Called on the engine's thread; must not block.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void emit(OutputBatch batch) = 0;
};

}  // namespace protean

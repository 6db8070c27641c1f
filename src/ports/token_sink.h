#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/replica_id.h"
#include "base/result.h"
#include "base/units.h"
#include "contract/groups.h"
#include "contract/memory_use.h"
#include "contract/migrations.h"
#include "contract/morph.h"
#include "contract/observation.h"
#include "contract/replicas_wanted.h"
#include "contract/request.h"

namespace protean {

// The engine answers every Arrival at once with Accepted or Refused, and every Accepted is followed
// by exactly one Finished.
struct Accepted {
  RequestId request;
};
struct Refused {
  RequestId request;
  Error error;
};
// Likelihoods of consecutive prompt tokens. A long prompt has several, in order of position; all
// come before the first NewToken.
struct PromptScored {
  RequestId request;
  int first_position = 1;  // position of the token of logprobs[0]
  std::vector<TokenLogprobs> logprobs;
};
struct NewToken {
  RequestId request;
  TokenId token = 0;
  std::optional<TokenLogprobs> logprobs;  // if the request wants them
  // precision_label() of the form that drew it; null if the form never changes.
  std::shared_ptr<const std::string> precision;
};
struct Finished {
  RequestId request;
  FinishReason reason = FinishReason::kStop;
  TokenId stop_id = -1;    // the token that ended the answer; -1: none did
  std::string failure;     // the reason, for kFailed
  bool may_retry = false;  // for kFailed: the same request may succeed later
  RequestUsage usage;
  RequestTimes times;
  std::vector<float> embedding;  // [hidden], if the request asked for pooling
};
// Answers a WantForm: the morph that begins now, or why none does.
struct WishAnswered {
  std::uint64_t wish_id = 0;
  Result<Morph> morph;
};
// Answers a WantMigration: the number of requests that begin to move, or why none can.
struct MigrationAnswered {
  std::uint64_t wish_id = 0;
  Result<int> requests;
};
// Answers a WantGroups: the changes that begin now, in order, or why none does.
struct GroupsAnswered {
  std::uint64_t wish_id = 0;
  Result<std::vector<Regroup>> changes;
};
using Output = std::variant<Accepted, Refused, PromptScored, NewToken, Finished, WishAnswered,
                            MigrationAnswered, GroupsAnswered>;

// The outputs of one replica for one event, in order.
struct OutputBatch {
  TimeNs at_ns = 0;
  ReplicaId replica;
  std::vector<Output> outputs;
  Observation observation;
  std::shared_ptr<const FormStatus> form;         // null unless it has changed
  std::shared_ptr<const GroupsStatus> groups;     // the whole fleet's; null unless it has changed
  std::shared_ptr<const Migrations> migrations;   // the whole fleet's; null unless changed
  std::optional<MemoryUse> memory;                // nothing unless other models are to know it
  std::optional<ReplicasWanted> replicas_wanted;  // of the whole fleet; nothing unless changed
};

// Receives the outputs of a fleet's engines. Called on their thread; must not block.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void emit(OutputBatch batch) = 0;
};

}  // namespace protean

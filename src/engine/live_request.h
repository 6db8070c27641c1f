#pragma once

#include <memory>
#include <vector>

#include "base/units.h"
#include "contract/request.h"
#include "engine/precision_ledger.h"
#include "scheduler/scheduler.h"

namespace protean {

// An accepted request that has not ended, as its engine keeps it.
struct LiveRequest {
  std::vector<TokenId> stop_ids;
  int tokens_left = 0;
  int prompt_tokens = 0;
  Pooling pooling = Pooling::kNone;
  Deadlines deadlines;
  TimeNs timer_ns = -1;  // its entry in the engine's timers
  RequestTimes times;
  TimeNs last_token_ns = -1;
  PrecisionLedger::Counts drawn_at;    // tokens that this engine drew
  std::vector<TokensAt> drawn_before;  // tokens that earlier engines of the request drew
  std::vector<double> pooled;          // the sum so far
};

// A request on its way from one engine to another, with all that has happened to it except its KV.
struct MovedRequest {
  std::unique_ptr<Sequence> sequence;
  LiveRequest live;
};

// What an engine predicts of a request that it could have.
struct Prospect {
  std::optional<Error> refusal;  // why it would be refused now
  std::int64_t tokens = 0;       // prompt tokens that the prefix cache does not have
  Backlog before;                // the work that comes before it
  TimeNs first_token_ns = 0;     // predicted time until its first token; 0: nothing was measured
};

}  // namespace protean

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/units.h"
#include "contract/form.h"
#include "contract/token_constraint.h"

namespace protean {

// How one token is drawn from logits. First the penalties and rules, then the constraint's mask,
// then the filters in the order temperature, top_k, top_p, min_p.
struct SamplingParams {
  float temperature = 1.0F;  // 0 = greedy, ties to the lowest id
  int top_k = 0;             // 0 = all
  float top_p = 1.0F;
  float min_p = 0.0F;  // relative to the most likely token
  std::uint64_t seed = 0;
  float repetition_penalty = 1.0F;  // > 1: logits of the prompt's and answer's tokens shrink
  float presence_penalty = 0.0F;    // taken once from the logit of each token of the answer
  float frequency_penalty = 0.0F;   // and this once per occurrence

  bool penalises() const {
    return repetition_penalty != 1.0F || presence_penalty != 0.0F || frequency_penalty != 0.0F;
  }
};

struct TokenBias {
  TokenId token = 0;
  float bias = 0.0F;  // added to its logit
};

// What a request says of single tokens. Shared by its steps, never changed.
struct TokenRules {
  std::vector<TokenBias> bias;
  std::vector<TokenId> allowed;                 // ascending; empty: all
  std::vector<std::vector<TokenId>> bad_words;  // runs of tokens that an answer may not hold
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0F;
};

// How likely the model alone held a token to be: log-softmax of the raw logits, before penalties,
// rules, constraint and temperature.
struct TokenLogprobs {
  float logprob = 0.0F;
  int rank = 0;                   // 1 = most likely
  std::vector<TokenLogprob> top;  // most likely first
  std::vector<float> row;         // of all the vocabulary, where asked for
};

// What of that a request wants told. Asking for the prompt's computes all of the prompt anew, with
// no use of the prefix cache.
struct LogprobsWanted {
  bool answer = false;
  bool prompt = false;      // of each prompt token but the first
  int top = 0;              // so many alternatives with each
  bool whole_rows = false;  // of the prompt's: for evaluation in the same process
};

// An embedding is made of the last layer's normalised rows of the prompt, not yet scaled to unit
// length.
enum class Pooling : std::uint8_t { kNone, kMean, kLast };

// What a checkpoint recommends (generation_config.json): defaults for what a client leaves out.
struct GenerationDefaults {
  std::vector<TokenId> stop_ids;  // end-of-sequence tokens
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
};

// When an answer is still of use. Times of the engine's clock; -1: no such time.
struct Deadlines {
  TimeNs first_token_ns = -1;  // orders the queue; hopeless requests are refused
  TimeNs finish_ns = -1;       // then the answer is cut, FinishReason::kTimeout
};

// Tokens in, at most max_tokens out. No text: a stop string is the server's, and becomes a Cancel.
struct Request {
  RequestId id;
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  std::shared_ptr<const TokenRules> rules;      // null: none
  std::shared_ptr<TokenConstraint> constraint;  // null: none
  int max_tokens = 16;                          // 0: the prompt alone is computed
  int min_tokens = 0;                           // until then no stop id is drawn
  std::vector<TokenId> stop_ids;                // ends the answer; not part of it
  LogprobsWanted logprobs;
  Pooling pooling = Pooling::kNone;  // other than kNone: max_tokens is 0
  int priority = 0;                  // the lower, the earlier
  Deadlines deadlines;
  std::string cache_salt;  // prefix blocks are shared only between equal salts
  // Requests with the same client share one client's part of a step, as the choices of one call do:
  // the id of the first of them. 0: this request has no others.
  RequestId client;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kFailed, kTimeout };

struct RequestUsage {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // of the prompt, found in the prefix cache at first admission
  int output_tokens = 0;
  int preemptions = 0;
  std::vector<TokensAt> output_at;  // output tokens by the precision of the form that drew them
};

// Negative where the request never got so far.
struct RequestTimes {
  TimeNs arrived_ns = -1;
  TimeNs scheduled_ns = -1;
  TimeNs first_token_ns = -1;
  TimeNs finished_ns = -1;
};

}  // namespace protean

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

// How a token is drawn from logits. Penalties and rules apply first, then the constraint's mask,
// then temperature, top_k, top_p and min_p in this order.
struct SamplingParams {
  float temperature = 1.0F;  // 0 = greedy, ties to the lowest id
  int top_k = 0;             // 0 = all
  float top_p = 1.0F;
  float min_p = 0.0F;  // relative to the most likely token
  std::uint64_t seed = 0;
  float repetition_penalty = 1.0F;  // > 1: makes tokens of the prompt and answer less likely
  float presence_penalty = 0.0F;    // subtracted once from the logit of each token of the answer
  float frequency_penalty = 0.0F;   // subtracted once for each occurrence

  bool penalises() const {
    return repetition_penalty != 1.0F || presence_penalty != 0.0F || frequency_penalty != 0.0F;
  }
};

struct TokenBias {
  TokenId token = 0;
  float bias = 0.0F;  // added to the token's logit
};

// The rules of a request about single tokens. Immutable; all steps of the request share them.
struct TokenRules {
  std::vector<TokenBias> bias;
  std::vector<TokenId> allowed;  // ascending; empty: all
  std::vector<std::vector<TokenId>>
      bad_words;  // sequences of tokens that an answer must not contain
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0F;
};

// The likelihood of a token by the model alone: log-softmax of the raw logits, before penalties,
// rules, constraint and temperature.
struct TokenLogprobs {
  float logprob = 0.0F;
  int rank = 0;                   // 1 = most likely
  std::vector<TokenLogprob> top;  // most likely first
  std::vector<float> row;         // log-probabilities of the whole vocabulary, if asked for
};

// The likelihoods that a request wants. A request for those of its prompt computes the whole prompt
// and does not use the prefix cache.
struct LogprobsWanted {
  bool answer = false;
  bool prompt = false;      // the likelihood of each prompt token but the first
  int top = 0;              // alternatives for each token
  bool whole_rows = false;  // TokenLogprobs::row of the prompt, for evaluation in the same process
};

// How the normalised output rows of the last layer become one embedding of the prompt. The result
// is not yet scaled to unit length.
enum class Pooling : std::uint8_t { kNone, kMean, kLast };

// The checkpoint's defaults (generation_config.json) for fields that a client leaves out.
struct GenerationDefaults {
  std::vector<TokenId> stop_ids;  // end-of-sequence tokens
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;

  friend bool operator==(const GenerationDefaults&, const GenerationDefaults&) = default;
};

// The deadlines of a request, in the engine's clock; -1: none.
struct Deadlines {
  TimeNs first_token_ns = -1;  // orders the queue; requests that cannot meet it are refused
  TimeNs finish_ns = -1;       // the answer ends then, with FinishReason::kTimeout
};

// A request in tokens. It has no text: the server looks for stop strings and sends a Cancel.
struct Request {
  RequestId id;
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  std::shared_ptr<const TokenRules> rules;      // null: none
  std::shared_ptr<TokenConstraint> constraint;  // null: none
  int max_tokens = 16;                          // 0: only the prompt is computed
  int min_tokens = 0;                           // no stop id is drawn before so many
  std::vector<TokenId> stop_ids;                // end the answer and are not part of it
  LogprobsWanted logprobs;
  Pooling pooling = Pooling::kNone;  // unless kNone, max_tokens is 0
  int priority = 0;                  // lower runs earlier
  Deadlines deadlines;
  std::string cache_salt;  // requests share prefix blocks only if their salts are equal
  // The id of the first request of the same API call. Requests of equal `call`, such as the choices
  // of one completion, share one call's part of a step. 0: the request is alone in its call.
  RequestId call;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kFailed, kTimeout };

struct RequestUsage {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // found in the prefix cache at first admission
  int output_tokens = 0;
  int preemptions = 0;
  std::vector<TokensAt> output_at;  // output tokens by the precision of the form that drew them
};

// Negative if the request never got so far.
struct RequestTimes {
  TimeNs arrived_ns = -1;
  TimeNs scheduled_ns = -1;
  TimeNs first_token_ns = -1;
  TimeNs finished_ns = -1;
};

}  // namespace protean

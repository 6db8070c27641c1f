#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/units.h"

namespace protean {

// How one token is drawn from logits. Filters apply in the order temperature, top_k, top_p, min_p.
struct SamplingParams {
  float temperature = 1.0F;  // 0 = greedy, ties to the lowest id
  int top_k = 0;             // 0 = all
  float top_p = 1.0F;
  float min_p = 0.0F;  // relative to the most likely token
  std::uint64_t seed = 0;
};

// What a checkpoint recommends (generation_config.json): defaults for what a client leaves out.
struct GenerationDefaults {
  std::vector<TokenId> stop_ids;  // end-of-sequence tokens
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
};

// Tokens in, at most max_tokens out. No text: a stop string is the server's, and becomes a Cancel.
struct Request {
  RequestId id;
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  int max_tokens = 16;            // at least one
  std::vector<TokenId> stop_ids;  // ends the answer; not part of it
  std::string cache_salt;         // prefix blocks are shared only between equal salts
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kFailed };

struct RequestUsage {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // of the prompt, found in the prefix cache at first admission
  int output_tokens = 0;
  int preemptions = 0;
};

// Negative where the request never got so far.
struct RequestTimes {
  TimeNs arrived_ns = -1;
  TimeNs scheduled_ns = -1;
  TimeNs first_token_ns = -1;
  TimeNs finished_ns = -1;
};

}  // namespace protean

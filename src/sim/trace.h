#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace protean {

struct TraceRequest {
  TimeNs at_ns = 0;  // since the trace's first request
  int prompt_tokens = 0;
  int output_tokens = 0;
};

// The text of an Azure LLM inference trace of 2023: a header line, then
// "2023-11-16 18:17:03.9799600,4808,10" (TIMESTAMP,ContextTokens,GeneratedTokens) in time order.
Result<std::vector<TraceRequest>> parse_azure_trace(std::string_view csv);

// The text of a BurstGPT trace: a header line, then "5,ChatGPT,472,18,490,Conversation log"
// (seconds, model, request, response and total tokens, kind) in time order. Requests that got no
// answer are left out.
Result<std::vector<TraceRequest>> parse_burstgpt_trace(std::string_view csv);

// The trace, over and over, until there are `count` requests.
std::vector<TraceRequest> repeat_trace(const std::vector<TraceRequest>& trace, std::size_t count);

}  // namespace protean

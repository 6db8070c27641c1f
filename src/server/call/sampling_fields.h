#pragma once

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// Read parts of a body that several dialects or kinds of call share. Errors stay in `fields`.
SamplingFields read_sampling(FieldReader& fields);
TokenFields read_token_rules(FieldReader& fields);  // logit_bias, allowed_token_ids, bad_words
StopFields read_stop(FieldReader& fields);
PromptFields read_prompt_fields(FieldReader& fields);  // without echo
StreamFields read_stream(FieldReader& fields);
UrgencyFields read_urgency(FieldReader& fields);

inline constexpr int kMostTopLogprobs = 20;
inline constexpr std::size_t kMaxStopBytes = 1024;  // of a stop string
// The number of logprobs is top_logprobs in chats and logprobs in completions.
ReportFields read_report(FieldReader& fields, bool chat);

// Reads a string, an array of strings, an array of token ids, or an array of such arrays.
CompletionInput read_completion_input(FieldReader& fields, std::string_view name);

// Reads token ids, without checking them against the vocabulary. `where` names the list in errors
// about `field`.
std::optional<std::vector<TokenId>> read_token_ids(const boost::json::array& list,
                                                   std::string_view where, std::string_view field,
                                                   FieldReader& fields);

}  // namespace protean

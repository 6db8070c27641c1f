#pragma once

#include <array>
#include <limits>

#include "server/call/field_reader.h"
#include "server/call/generation_call.h"

namespace protean {

// The tables of the fields that the functions below read.
inline constexpr std::array kSamplingTable{
    number_field("temperature", {.low = 0, .high = 100},
                 "Divides the logits; 0 takes the likeliest token."),
    number_field("top_p", {.low = 0, .high = 1, .low_included = false},
                 "Draws among the likeliest tokens that together have this probability."),
    number_field("min_p", {.low = 0, .high = 1},
                 "Draws among tokens with at least this share of the likeliest one's probability."),
    integer_field("top_k", -1, kNoLimit,
                  "Draws among this many of the likeliest tokens; 0 and -1: among all."),
    any_field("seed",
              R"({"type":"integer","minimum":-9223372036854775808,"maximum":18446744073709551615})",
              "Makes the draws repeatable."),
    number_field(
        "repetition_penalty", {.low = 0, .high = 100, .low_included = false},
        "Divides positive logits of tokens that have occurred, and multiplies negative ones."),
    number_field("presence_penalty", {.low = -2, .high = 2},
                 "Is subtracted from the logits of tokens that the answer holds."),
    number_field("frequency_penalty", {.low = -2, .high = 2},
                 "Is subtracted from a token's logit for each time that the answer holds it."),
};
inline constexpr std::array kTokenTable{
    object_field("logit_bias", "Is added to the logits of these token ids.", {},
                 R"({"maxProperties":4096,"propertyNames":{"pattern":"^[0-9]+$"},)"
                 R"("additionalProperties":{"type":"number","minimum":-100,"maximum":100}})"),
    array_field("allowed_token_ids", "The only tokens that the answer may hold.",
                R"({"maxItems":1024,"items":{"type":"integer","minimum":0}})"),
    any_field("bad_words",
              R"({"type":["string","array"],"minLength":1,"maxItems":64,)"
              R"("items":{"type":"string","minLength":1}})",
              "Words that the answer must not hold."),
};
inline constexpr std::array kStopTable{
    any_field("stop",
              R"({"type":["string","array"],"minLength":1,"maxItems":16,)"
              R"("items":{"type":"string","minLength":1}})",
              "Texts that end the answer."),
    array_field("stop_token_ids", "Tokens that end the answer.",
                R"({"maxItems":1024,"items":{"type":"integer","minimum":0}})"),
    boolean_field("ignore_eos", "Goes on after the model's own end of an answer."),
    boolean_field("include_stop_str_in_output", "Keeps the stop string in the answer's text."),
    integer_field("min_tokens", 0, kNoLimit, "Ignores ends of the answer before this many tokens."),
};
inline constexpr std::array kPromptTable{
    boolean_field("add_special_tokens", "Begins the prompt as the tokenizer does, with BOS."),
    any_field("truncate_prompt_tokens",
              R"({"type":"integer","anyOf":[{"const":-1},{"minimum":1}]})",
              "Keeps this many of the prompt's last tokens; -1: as many as fit."),
};
inline constexpr std::array kStreamOptionsTable{
    boolean_field("include_usage", "Sends the token counts in a last event."),
    boolean_field("continuous_usage_stats", "Sends the token counts so far in each event."),
};
inline constexpr std::array kStreamTable{
    boolean_field("stream", "Sends the answer as server-sent events while it is computed."),
    object_field("stream_options", "Is only allowed when stream is true.", kStreamOptionsTable),
};
inline constexpr std::array kUrgencyTable{
    integer_field("priority", std::numeric_limits<int>::min(), std::numeric_limits<int>::max(),
                  "Requests of a lower number come first."),
    number_field("timeout", {.low = 0, .high = 604800, .low_included = false},
                 "Seconds after which the request is given up."),
};
// Headers, not fields of the body: milliseconds within the range of an integer.
inline constexpr std::array kUrgencyHeaders{
    integer_field("x-slo-ttft-ms", 1, 604800000,
                  "Asks for the first token within so many milliseconds."),
    integer_field("x-request-timeout-ms", 1, 604800000,
                  "Gives the request up after so many milliseconds."),
};
inline constexpr int kMostTopLogprobs = 20;
inline constexpr std::array kReportTable{
    integer_field(
        "prompt_logprobs", 0, kMostTopLogprobs,
        "Reports the log-probabilities of the prompt's tokens, with so many alternatives."),
    boolean_field("return_token_ids", "Adds the token ids of prompt and answer."),
    boolean_field("return_tokens_as_token_ids",
                  "Names tokens token_id:N where logprobs show them."),
    boolean_field("skip_special_tokens", "Leaves special tokens out of the text; true by default."),
};
inline constexpr std::array kChatReportTable{
    boolean_field("logprobs", "Reports the log-probabilities of the answer's tokens."),
    integer_field("top_logprobs", 0, kMostTopLogprobs,
                  "How many alternatives are reported for each token; needs logprobs."),
};
inline constexpr std::array kCompletionReportTable{
    any_field("logprobs",
              R"({"anyOf":[{"const":false},{"type":"integer","minimum":0,"maximum":20}]})",
              "Reports the log-probabilities of the answer's tokens, with so many alternatives."),
};

// Text, token ids, or lists of these: what read_completion_input() accepts.
inline constexpr std::string_view kTextsOrTokensSchema =
    R"({"type":["string","array"],"minItems":1,"items":{"type":["string","integer","array"],)"
    R"("minimum":0,"items":{"type":"integer","minimum":0}}})";

// Read parts of a body that several dialects or kinds of call share. Errors stay in `fields`.
SamplingFields read_sampling(FieldReader& fields);
TokenFields read_token_rules(FieldReader& fields);  // logit_bias, allowed_token_ids, bad_words
StopFields read_stop(FieldReader& fields);
PromptFields read_prompt_fields(FieldReader& fields);  // without echo
StreamFields read_stream(FieldReader& fields);
UrgencyFields read_urgency(FieldReader& fields);

inline constexpr std::size_t kMaxStopBytes = 1024;  // bound of a stop string
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

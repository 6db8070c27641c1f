#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/answer/answer_writer.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// Writes tokens and their log probabilities as OpenAI's answers do. A token whose bytes are not
// whole characters is written as "bytes:\xe2\x82", a special token by its name. Log probabilities
// below -9999 and values that are not finite are written as -9999, as JSON has no infinity.
class TokenReport {
 public:
  TokenReport(const Tokenizer& tokenizer, bool as_ids) : tokenizer_(&tokenizer), as_ids_(as_ids) {}

  // Returns {"content":[{"token","logprob","bytes","top_logprobs"}]}. All tokens have logprobs.
  std::string chat_logprobs(std::span<const AnswerToken> tokens, int top) const;
  // Returns the objects of "content", separated by commas.
  std::string tokens_json(std::span<const AnswerToken> tokens, int top) const;
  // Returns {"tokens","token_logprobs","top_logprobs","text_offset"}. A prompt's first token has no
  // logprobs. `offset` is where the tokens begin in the text, in characters, and is moved to their
  // end; it is -1 if the text lacks the first token, which is BOS.
  std::string completion_logprobs(std::span<const AnswerToken> tokens, int top,
                                  std::int64_t& offset) const;
  // Returns vLLM's [null, {"ID": {"logprob", "rank", "decoded_token"}}, ...].
  std::string prompt_logprobs(std::span<const AnswerToken> tokens, int top) const;

 private:
  std::string name(TokenId token) const;
  std::string bytes(TokenId token) const;

  const Tokenizer* tokenizer_;
  const bool as_ids_;
};

// Returns `,"output_tokens_by_precision":{"bf16:16":12,"bf16:14+w4:2":3}`, a field that is not
// OpenAI's; empty if it is not known yet.
std::string by_precision(const AnswerUsage& usage);

std::string json_text(std::string_view text);               // a quoted JSON string
std::string json_ids(std::span<const AnswerToken> tokens);  // [1,2]

}  // namespace protean

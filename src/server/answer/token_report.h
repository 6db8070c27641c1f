#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/answer/answer_writer.h"
#include "tokenizer/tokenizer.h"

namespace protean {

// How OpenAI's answers tell of tokens. A token whose bytes are no whole characters is shown as
// "bytes:\xe2\x82", a special one by its name; log probabilities are not below -9999, as JSON has
// no infinity.
class TokenReport {
 public:
  TokenReport(const Tokenizer& tokenizer, bool as_ids) : tokenizer_(&tokenizer), as_ids_(as_ids) {}

  // {"content":[{"token","logprob","bytes","top_logprobs"}]}; tokens all have logprobs.
  std::string chat_logprobs(std::span<const AnswerToken> tokens, int top) const;
  // The objects of that, separated by commas.
  std::string tokens_json(std::span<const AnswerToken> tokens, int top) const;
  // {"tokens","token_logprobs","top_logprobs","text_offset"}. A prompt's first token has no
  // logprobs. `offset` is where the tokens begin in the text, in characters (-1: the first one's is
  // not shown); is moved to their end.
  std::string completion_logprobs(std::span<const AnswerToken> tokens, int top,
                                  std::int64_t& offset) const;
  // vLLM's [null, {"ID": {"logprob", "rank", "decoded_token"}}, ...].
  std::string prompt_logprobs(std::span<const AnswerToken> tokens, int top) const;

 private:
  std::string name(TokenId token) const;
  std::string bytes(TokenId token) const;

  const Tokenizer* tokenizer_;
  const bool as_ids_;
};

// `,"output_tokens_by_precision":{"bf16:16":12,"bf16:14+w4:2":3}`, a field that clients ignore
// unless they know it; nothing where it is not known yet.
std::string by_precision(const AnswerUsage& usage);

std::string json_text(std::string_view text);               // "text", quoted
std::string json_ids(std::span<const AnswerToken> tokens);  // [1,2]

}  // namespace protean
